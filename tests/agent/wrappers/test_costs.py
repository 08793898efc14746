"""What thousands of wrappers of one container cost a pass, counted in operations so that no load changes it."""

from __future__ import annotations

from pathlib import Path

from agent.wrappers.protocol import Pool, Want
from agent.wrappers.registry import Claim, Holder, Process
from agent.wrappers.store import MOST_RECLAIMED, Reclaims
from pinning.cmk.pools import Reclaimed
from pinning.planning.observed import Owner
from tests.agent.wrappers.scene import Scene, plain_pod
from tests.webhook.operations import operations

MAIN = Holder("q/main", Owner("q", "main"), "default/q/main")
FIRST_PID = 2**22  # above every pid of this machine


def wrapped(folder: Path, processes: int) -> Scene:
    """Return a node with wrapped processes in its shared pool, after a pass."""
    folder.mkdir()
    scene = Scene(folder, plain_pod())
    scene.run_pass()
    for number in range(processes):
        scene.keeper._claims._put(Claim(Process(FIRST_PID + number, 1), MAIN, Want(Pool.SHARED)))
    scene.run_pass()
    return scene


def test_pass_without_changes_looks_at_no_process(tmp_path: Path) -> None:
    """A pass that moves nothing costs the wrappers the same with one process and with 300."""
    one, many = wrapped(tmp_path / "one", 1), wrapped(tmp_path / "many", 300)
    state, containers = one.state(), one.passed_containers(one.state())

    def passed(scene: Scene) -> int:
        return operations(lambda: scene.keeper.passed(state, containers))

    assert passed(many) < passed(one) + 100


def test_pass_without_changes_computes_no_task_again(tmp_path: Path) -> None:
    """The tasks of processes in a pool are computed again only when a pool has other CPUs."""
    scene = wrapped(tmp_path / "node", 300)
    state = scene.state()
    scene.keeper.passed(state, scene.passed_containers(state))
    assert operations(lambda: scene.keeper.shown(state)) < 300 * 60


def test_an_entry_above_the_limit_does_not_cost_the_length_of_the_list() -> None:
    """Evicting an entry looks at the namespaces, and not at each entry."""
    reclaims = Reclaims()
    for pid in range(MOST_RECLAIMED):
        reclaims.add(Reclaimed(pid, "a/pod/main", "shared", "0-3"))
    assert operations(lambda: reclaims.add(Reclaimed(1, "b/pod/main", "shared", "0-3"))) < MOST_RECLAIMED
    assert len(reclaims.entries) == MOST_RECLAIMED
    assert reclaims.dropped == 1
