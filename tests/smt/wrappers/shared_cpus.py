"""Inside the guest: a container that uses the shared set beside its own CPUs, and one that is granted some of these."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pinning.contract import SHARED_CPUS, SMT_POLICY
from pinning.machine.cpuset import CPUSet
from tests.environments.guest.inside import report
from tests.pods import CPU_MANAGER
from tests.smt.wrappers.wrapping_agent import PROGRAM, cpuset_file, masks

if TYPE_CHECKING:
    from tests.smt.wrappers.wrapping_agent import WrappingAgent

WHOLE_CORE: Final = {CPU_MANAGER: "exclusive", f"{SMT_POLICY}/pod": "require"}
HELPED: Final = WHOLE_CORE | {f"{SHARED_CPUS}/pod": "true"}


def shared_cpus(agent: WrappingAgent, told: Path, cpus: int = 2) -> None:
    """Let a program move its helper, take from the shared set, and give back.

    The runtime `local` has no downward API that shows a container its shared set: the file stands for it.
    """
    wait = f"until [ -s {told} ]; do sleep 0.1; done"
    agent.owner(
        "helped", cpus, f"{wait}; CMK_CPUS_INFRA=$(cat {told}) exec {sys.executable} -I {PROGRAM}", HELPED
    )
    agent.until("it has both parts", lambda: bool(agent.container("helped").get("sharedCpus")))
    told.write_text(",".join(map(str, CPUSet.parse(agent.container("helped")["sharedCpus"]))))
    lines = agent.until_written("helped", "moved")
    _tell(agent, "alone", lines)
    _grant(agent, cpus)
    agent.end("granted")
    agent.until("all is given back", lambda: _is_settled(agent, told.read_text()))
    _tell(agent, "given back")
    agent.end("helped")


def _grant(agent: WrappingAgent, cpus: int) -> None:
    """Start a container that reads the other one's masks at its first instructions; report the masks of both later."""
    pid = _pid(agent)
    look = f"cat {cpuset_file(pid)}; grep -h Cpus_allowed_list /proc/self/status /proc/{pid}/task/*/status"
    agent.owner("granted", cpus, f"{look}; echo looked; exec sleep 1000000", WHOLE_CORE)
    lines = agent.until_written("granted", "looked")
    agent.until("it is proven", lambda: bool(agent.container("granted").get("pinned")))
    agent.until("the helper is moved", lambda: _is_settled(agent, agent.state()["sets"]["shared"]))
    _tell(agent, "granted", lines, granted=agent.container("granted")["cpus"])


def _is_settled(agent: WrappingAgent, shared: str) -> bool:
    """Return whether the two threads are on the two parts, the second of which is the shared set."""
    container, cpus = agent.container("helped"), CPUSet.parse(shared)
    parts = sorted([container["cpus"], str(cpus)])
    return container.get("sharedCpus") == str(cpus) and masks(_pid(agent)) == parts


def _pid(agent: WrappingAgent) -> int:
    running = agent.seen("helped")
    assert running
    return running.pid


def _tell(agent: WrappingAgent, step: str, lines: list[str] | None = None, **more: object) -> None:
    pid, container = _pid(agent), agent.container("helped")
    report(
        "helped",
        step=step,
        lines=lines,
        own=container["cpus"],
        others=container.get("sharedCpus", ""),
        cpuset=cpuset_file(pid).read_text().strip(),
        masks=masks(pid),
        affinity=container["applied"].get("affinity"),
        shared=agent.state()["sets"]["shared"],
        **more,
    )
