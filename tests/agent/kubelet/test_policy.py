"""The kubelet's state files, whose policies decide whether the agent observes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.kubelet.policy import MEMORY_STATE, MountedState, read_kubelet_policy, versions
from pinning.contract import KubeletPolicy

CPU_STATE = "cpu_manager_state"


@pytest.mark.parametrize("name", [CPU_STATE, MEMORY_STATE])
def test_every_write_of_the_kubelet_changes_the_versions(tmp_path: Path, name: str) -> None:
    """A file that appears, is replaced or disappears has another version, and none otherwise."""
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


@pytest.mark.parametrize(
    ("policy", "change", "ends"),
    [
        pytest.param("none", "replaced", True, id="the policy of before said none"),
        pytest.param("none", "removed", True, id="a kubelet that is about to start"),
        pytest.param(
            "odd", "replaced", False, id="a form that no agent knows: starting again would not help"
        ),
        pytest.param("none", "unchanged", False, id="unchanged"),
        pytest.param("static", "replaced", False, id="static: replaced with every pod"),
    ],
)
def test_agent_ends_when_its_mounted_state_file_is_replaced(
    tmp_path: Path, policy: str, change: str, *, ends: bool
) -> None:
    """The mount keeps the removed file, so the agent ends to read the new one, unless it was static."""
    command = ["unshare", "--mount", sys.executable, "-m", "tests.agent.kubelet.mounted"]
    result = subprocess.run(
        [*command, tmp_path, policy, change], check=True, capture_output=True, text=True, timeout=240
    )

    file = tmp_path / CPU_STATE
    problem = (
        f"{file}: the kubelet has replaced this file since it was mounted, so its policy may have changed"
    )
    remedy = "the agent exits, and reads the new file at its next start"
    assert result.stdout.strip() == (f"{problem}: {remedy}" if ends else "worked on")


def test_state_files_in_a_mounted_folder_are_read_again(tmp_path: Path) -> None:
    """If the whole folder is mounted a replaced file is read, and the agent does not end."""
    for name in (CPU_STATE, MEMORY_STATE):
        (tmp_path / name).write_text('{"policyName":"none"}')
    mounted = MountedState(tmp_path / CPU_STATE)
    for name in (CPU_STATE, MEMORY_STATE):
        (tmp_path / "new").write_text('{"policyName":"static"}')
        (tmp_path / "new").rename(tmp_path / name)

    assert mounted.replaced() == ""
    assert read_kubelet_policy(tmp_path / CPU_STATE) is KubeletPolicy.STATIC


def test_file_without_a_link_count_does_not_end_the_agent(tmp_path: Path) -> None:
    """On a file system without link counts the agent would otherwise end at once."""
    state = tmp_path / CPU_STATE
    state.write_text('{"policyName":"none"}')
    with state.open() as file:
        state.unlink()
        assert MountedState(Path(f"/proc/self/fd/{file.fileno()}")).replaced() == ""
