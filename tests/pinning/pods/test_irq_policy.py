"""Values of `irq-policy`: words and globs, bounded in number, length and characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.pods.annotations import read_policy_annotations
from pinning.pods.claims import read_pod
from pinning.pods.irq_policy import LONGEST, MOST_GLOBS, IrqPolicy, irq_flaw, merged
from tests.pods import container, pod
from tests.tables import table

POD = "irq-policy.corepin.io/pod"
QUIET = {"cpu-manager.corepin.io/pod": "exclusive", "noise-policy.corepin.io/pod": "quiet"}
WORDS = "away, or devices and globs of interrupt names, such as eth1-rx-*, eth1-tx-*"


@table(
    "text, names",
    {
        "away": ("away", ()),
        "devices": ("devices", ("devices",)),
        "a name": ("eth1-rx-0", ("eth1-rx-0",)),
        "globs": ("eth1-tx-*,  eth1-rx-[0-3] ", ("eth1-rx-[0-3]", "eth1-tx-*")),
        "both": ("mlx5_comp?@pci:0000:41:00.0,devices", ("devices", "mlx5_comp?@pci:0000:41:00.0")),
        "twice": ("eth0,eth0", ("eth0",)),
        "with a space": ("PCIe PME", ("PCIe PME",)),
    },
)
def test_a_value_is_a_list_of_names(text: str, names: tuple[str, ...]) -> None:
    """The value is a list of words and globs in any order; `away` adds no name."""
    assert irq_flaw(text) == ""
    assert IrqPolicy(text).names == names


@table(
    "text, flaw",
    {
        "empty": ("", f"'' has an empty part: write {WORDS}"),
        "an empty part": ("eth0,,eth1", f"'eth0,,eth1' has an empty part: write {WORDS}"),
        "a path": ("../25", f"'../25' is neither a word nor a glob: write {WORDS}"),
        "a control character": ("eth\x1b0", f"'eth\\x1b0' is neither a word nor a glob: write {WORDS}"),
        "away and a glob": (
            "away,eth0",
            "away means that no interrupt stays: write it alone, or leave it out",
        ),
        "too many": (
            "a,b,c,d,e,f,g,h,i",
            f"has 9 parts, and at most {MOST_GLOBS} are read: use globs such as eth1-rx-*, eth1-tx-*",
        ),
        "too long": (
            "x" * 97,
            f"has 97 characters, and at most {LONGEST} are read: use globs such as eth1-rx-*, eth1-tx-*",
        ),
    },
)
def test_another_value_is_refused_with_the_remedy(text: str, flaw: str) -> None:
    """Another value is refused with the found value, the expected ones and an example."""
    assert irq_flaw(text) == flaw
    with pytest.raises(ValueError, match=r"^$"):
        IrqPolicy(text)
    policies = read_policy_annotations({POD: text}, frozenset({"main"}))
    (cause,) = policies.causes
    assert (cause.field, cause.message) == (f"metadata.annotations[{POD}]", flaw)
    assert policies.irq_of(["main"]) == ()


@given(st.lists(st.sampled_from([*"ab*?[]!-, /", "away", "devices"]), max_size=120).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """A refusal is short, whatever the text."""
    flaw = irq_flaw(text)
    assert len(flaw) < 400
    if not flaw:
        assert len(IrqPolicy(text).names) <= MOST_GLOBS


def test_narrower_annotations_win_and_a_pool_has_those_of_all_its_users() -> None:
    """A container's own value replaces that of the pod."""
    words = {
        POD: "devices",
        "irq-policy.corepin.io/container.a": "eth0",
        "irq-policy.corepin.io/container.b": "away",
    }
    policies = read_policy_annotations(words, frozenset("abc"))
    assert [policies.irq_of([name]) for name in "abc"] == [("eth0",), (), ("devices",)]
    assert policies.irq_of("abc") == ("devices", "eth0")
    assert merged([]) == ()
    assert not list(policies.causes)


@table(
    "words, has_effect",
    {
        "quiet": (QUIET, True),
        "CRI-O's word": (
            {"cpu-manager.corepin.io/pod": "exclusive", "irq-load-balancing.crio.io": "disable"},
            True,
        ),
        "corepin's word counts first": ({**QUIET, "noise-policy.corepin.io/pod": "none"}, False),
        "neither": ({"cpu-manager.corepin.io/pod": "exclusive"}, False),
    },
)
def test_a_policy_without_quiet_has_no_effect(words: dict[str, str], has_effect: bool) -> None:
    """An IRQ policy without `noise-policy: quiet`, or CRI-O's equivalent, has no effect, and a warning says so."""
    asked = read_pod(pod(container("main", limits="2"), annotations={**words, POD: "devices"}))
    (claim,) = asked.claims
    assert claim.irq == ("devices",)
    assert read_pod(pod(container("main", limits="2"), annotations=words)).claims[0].irq == ()
    messages = [it.message for it in asked.warnings]
    needs = "it has an effect only with noise-policy: quiet, or CRI-O's annotation of that meaning"
    assert messages == ([] if has_effect else [f"devices has no effect: {needs}"])


def test_a_long_value_is_truncated_in_a_warning() -> None:
    """A list of globs does not fill the answer."""
    words = {"cpu-manager.corepin.io/pod": "exclusive", POD: f"eth0-{'x' * 80}"}
    (warning,) = read_pod(pod(container("main", limits="2"), annotations=words)).warnings
    assert warning.message.startswith("eth0-xxxxxxxx")
    assert "... has no effect: " in warning.message
