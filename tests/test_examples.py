"""Every file under examples/ does what its first lines say, asked through the command's own code."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from corepin.cli import main
from corepin.documents import read_documents
from corepin.offline.review import inject, judge
from pinning.contract import EXCLUSIVE_NON_ISOLCPUS_CORES
from tests.examples import BY, EXAMPLES, EXPECT, ROOT, Example, ids
from webhook.config.mutations import BUILT_IN, load_mutations
from webhook.config.settings import Settings, load_settings
from webhook.review.handler import Decider

REFUSERS = {"corepin", "kube-apiserver"}


OURS = [example for example in EXAMPLES if example.path.parent.name != "vmi"]


def the_object(example: Example) -> Any:
    """Return the one object of an example."""
    (document,) = read_documents(str(example.path))
    (item,) = document.items()
    return item


@pytest.mark.parametrize("example", EXAMPLES, ids=ids(EXAMPLES))
def test_example_gets_the_answer_it_promises(example: Example) -> None:
    """An example's causes and warnings are exactly those that it promises, and so is its patch."""
    item, decider = the_object(example), Decider(Settings(), BUILT_IN)
    judged = judge(decider, item)

    answer = {f"refused {cause['field']}" for cause in judged.causes}
    if judged.allowed:
        changed = item.kind == "Pod" and inject(decider, item).content != item.content
        answer = {"patched" if changed else "allowed"}
    warned = {f"warning {warning.partition(': ')[0]}" for warning in judged.warnings}
    assert answer | warned == set(example.expected)


@pytest.mark.parametrize("example", OURS, ids=ids(OURS))
def test_example_is_a_kubernetes_object(example: Example) -> None:
    """The schema of Kubernetes 1.37 accepts the example, before and after injection: nothing else is wrong with it."""
    item = the_object(example)

    for content in (item.content, inject(Decider(Settings(), BUILT_IN), item).content):
        kubernetes_validate.validate(content, "1.37", strict=True)


@pytest.mark.parametrize("example", OURS, ids=ids(OURS))
def test_example_says_what_it_shows(example: Example) -> None:
    """An example begins with a sentence and names who refuses it; its object has the file's name."""
    first = example.path.read_text(encoding="utf-8").splitlines()[0]

    assert first.startswith("# ")
    assert not first.startswith((EXPECT, BY))
    assert example.by in REFUSERS
    assert the_object(example).name == f"{example.path.parent.name}-{example.path.stem}"


def test_every_answer_is_shown() -> None:
    """There are examples of each answer, and of what the API server refuses before us."""
    shown = {(line.partition(" ")[0], example.by) for example in EXAMPLES for line in example.expected}

    assert {(answer, "corepin") for answer in ("allowed", "patched", "refused", "warning")} <= shown
    assert ("refused", "kube-apiserver") in shown
    assert any(
        EXCLUSIVE_NON_ISOLCPUS_CORES in example.path.read_text(encoding="utf-8") for example in EXAMPLES
    )


def test_only_configuration_has_no_expectation() -> None:
    """A file without an expectation is one that configures the webhook, or a scheduler."""
    silent = set(ROOT.rglob("*.yaml")) - {example.path for example in EXAMPLES}

    assert {str(path.relative_to(ROOT)) for path in silent} == {
        "cmk/mutations-cluster-init.yaml",
        "cmk/mutations-resources.yaml",
        "config/topology-aware-scheduler.yaml",
        "config/webhook.yaml",
    }


def test_configuration_shows_every_key_with_its_default() -> None:
    """The example configuration is the default, but for the node shapes, of which there are none by default."""
    settings = load_settings((ROOT / "config/webhook.yaml").read_bytes())

    assert settings.node_shapes[0].free_cores == 15
    assert load_settings(b"") == Settings()
    text = (ROOT / "config/webhook.yaml").read_text(encoding="utf-8")
    assert (
        load_settings(
            text.replace(text[text.index("nodeShapes:") : text.index("# What KubeVirt")], "").encode()
        )
        == Settings()
    )
    assert all(f"\n{key}:" in text for key in ("feature-gates", *_keys()))


def _keys() -> list[str]:
    names = [name for name in Settings.__struct_encode_fields__ if name != "feature-gates"]
    return [str(name) for name in names]


@pytest.mark.parametrize("variant", ["mutations-resources", "mutations-cluster-init"])
def test_cmks_own_mutations_serve_the_examples(variant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """CMK's two shipped files load unchanged and bring their service account, /proc and toleration; /opt/bin is read-only."""
    path = ROOT / "cmk" / f"{variant}.yaml"
    (item,) = read_documents(str(ROOT / "cmk/exclusive-cores.yaml"))[0].items()

    pod = inject(Decider(Settings(), load_mutations(path.read_bytes())), item).content

    spec = pod["spec"]
    assert spec["serviceAccountName"] == "cmk-serviceaccount"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert {"name": "cmk-host-proc", "hostPath": {"path": "/proc"}} in spec["volumes"]
    assert all(mount["readOnly"] for mount in spec["containers"][0]["volumeMounts"])
    assert main(["validate", "-f", str(ROOT / "cmk/exclusive-cores.yaml"), "--mutations", str(path)]) == 0
    assert "host directory /proc is mounted read-only" in capsys.readouterr().out
