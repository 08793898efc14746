"""The kubelet's state files, whose policies decide whether the agent acts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.kubelet.policy import MEMORY_STATE, versions

CPU_STATE = "cpu_manager_state"


@pytest.mark.parametrize("name", [CPU_STATE, MEMORY_STATE])
def test_every_write_of_the_kubelet_changes_the_versions(tmp_path: Path, name: str) -> None:
    """A file that appears, is replaced by one of the same text, or disappears is another version; no other time is."""
    state = tmp_path / CPU_STATE
    seen = [versions(state)]
    for _ in range(2):
        new = tmp_path / "new"
        new.write_text('{"policyName":"none"}')
        new.rename(tmp_path / name)
        seen += [versions(state), versions(state)]
    (tmp_path / name).unlink()
    seen.append(versions(state))

    absent, first, again, other, other_again, gone = seen
    assert absent == gone == (None, None)
    assert first == again != other == other_again
    assert first != absent != other
