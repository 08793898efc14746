"""NRI features of each runtime by version, equal in code and operator guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.nri.versions import SUPPORT, has_validators, names_process, parsed
from agent.nri.wire.handlers import WORKER_EVENTS, may_be_unknown

GUIDE = Path(__file__).parents[3] / "docs/operator-guide.md"


def rows(text: str) -> list[tuple[str, str, str]]:
    """Return runtime, guard and helpers of each row of the table of versions."""
    table = text.partition("| runtime | NRI of its release |")[2].partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [(line[0], line[3], line[4]) for line in lines]


def versions(cell: str) -> list[str]:
    """Return runtime and version for each version in a cell such as "CRI-O 1.34, 1.35"."""
    title = cell.split()[0]
    return [f"{title.lower()} {found}.0" for found in re.findall(r"\d+\.\d+", cell)]


@pytest.mark.parametrize(
    ("runtime", "validators", "pid"),
    [
        ("containerd 1.6.20", False, True),
        ("containerd v2.1.9", False, True),
        ("containerd v2.2.0", True, True),
        ("cri-o 1.33.5", False, False),
        ("cri-o 1.34.0", True, False),
        ("cri-o 1.36.0-dev", True, True),
        ("CRI-O v2.0", True, True),
        ("containerd unknown", None, True),
        ("cri-o unknown", None, False),
        ("docker 28.0", None, True),
        ("", None, True),
    ],
)
def test_support_by_version(runtime: str, validators: bool | None, pid: bool) -> None:
    """Validators and named processes are supported from a known version on; for an unknown version support is unknown."""
    assert (has_validators(runtime), names_process(runtime)) == (validators, pid)


def test_numbers_of_any_length_are_parsed() -> None:
    """A version with ten thousand digits counts as unknown and is not an error."""
    assert parsed(f"cri-o 1.{'9' * 10_000}") == ("cri-o", ())


def test_client_tries_the_validators_where_they_are_certain() -> None:
    """A closed connection counts as a refused event mask, unless this release of containerd has validators."""
    major, minor = SUPPORT["containerd"].validators
    assert not may_be_unknown(WORKER_EVENTS, f"containerd v{major}.{minor}.0")
    assert may_be_unknown(WORKER_EVENTS, f"containerd v{major}.{minor - 1}.9")


def test_table_of_the_operator_guide() -> None:
    """Every row of the guide's table agrees with the code, and each version with a new feature has a row."""
    found = rows(GUIDE.read_text())
    seen = {version: (guard, helpers) for cell, guard, helpers in found for version in versions(cell)}
    for version, (guard, helpers) in seen.items():
        assert guard.startswith("yes") is bool(has_validators(version)), version
        assert ("from their start" in helpers) is (names_process(version) and "no NRI" not in helpers), (
            version
        )
    first = {
        f"{it.title.lower()} {'.'.join(map(str, each))}.0"
        for it in SUPPORT.values()
        for each in (it.nri, it.nri_default, it.validators, it.pid)
        if each
    }
    assert first <= seen.keys()
