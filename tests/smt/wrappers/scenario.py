"""Inside the guest: containers whose commands run under `cmk isolate`, and an agent that is killed during that."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.inside import report
from tests.smt.wrappers.shared_cpus import shared_cpus
from tests.smt.wrappers.wrapping_agent import (
    CGROUPS,
    PROGRAM,
    WrappingAgent,
    cgroup,
    foreign_threads,
    kill,
    masks,
    start_as,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection

FOLDER: Final = Path("/tmp/wrappers")
ISOLATE: Final = "CMK_NUM_CORES=1 CMK_LOCK_TIMEOUT=1000 cmk isolate --pool=exclusive"
TELL: Final = f"{ISOLATE} sh -- -c 'echo on $CMK_CPUS_ASSIGNED; exec sleep 1000000'"
HELD: Final = FOLDER / "held"
HOLD: Final = (
    f"while [ -e {HELD} ]; do :; done"  # without a fork: it could get the number that is to come again
)
CYCLES: Final = 50  # a thousand are run on the host: tests/agent/wrappers/test_on_this_machine.py
RACERS: Final = 50


def wrappers(starter: Connection, cores: int = 7) -> None:
    """Start commands that request all cores of the machine except the first, which is reserved."""
    FOLDER.mkdir()
    agent = WrappingAgent(FOLDER, starter)
    agent.start()
    without_the_resource(agent)
    race(agent, cores)
    at_once(agent, cores - 3)
    two_threads(agent)
    shared_cpus(agent, FOLDER / "infra")
    number_comes_again(agent, "killed", killed)
    number_comes_again(agent, "stopped", stopped)
    cycles(agent)
    threads(agent)
    agent.end("at-once", "threads")
    report("wrappers_end", tasks=agent.tasks, left=[str(path) for path in CGROUPS.glob("corepin-local*/*")])
    agent.process.kill()


def without_the_resource(agent: WrappingAgent) -> None:
    """Report the answer to a command in a container that has no cores."""
    agent.pod("without", "cmk isolate --pool=exclusive true; echo left with $?", cores=0)
    report("without", lines=agent.until_written("without", "left with"))
    agent.end("without")


def race(agent: WrappingAgent, cores: int) -> None:
    """Start many more commands at once than there are cores."""
    agent.pod("race", f"for i in $(seq {RACERS}); do ({TELL} || echo lost) & done; wait", cores)

    def lines() -> list[str]:
        return [line for line in agent.lines("race") if line.startswith(("on ", "lost"))]

    agent.until("all have raced", lambda: len(lines()) == RACERS)
    report("race", lines=lines(), cpus=agent.container("race")["cpus"])
    agent.end("race")


def at_once(agent: WrappingAgent, count: int) -> None:
    """Run as many commands as there are cores; each requests a core again when it has ended."""
    one = f"({TELL}; {HOLD}; {TELL}; {HOLD}; {TELL})"
    agent.pod("at-once", f"{' & '.join([one] * count)} & wait", count)
    agent.until("all run", lambda: len(_told(agent)) == count)
    tasks = agent.wrapped("at-once")
    report(
        *("at_once",),
        told=_told(agent),
        tasks=list(tasks.values()),
        allowed=[str(CPUSet(os.sched_getaffinity(pid))) for pid in tasks],
        shared=agent.state()["sets"]["shared"],
    )


def _told(agent: WrappingAgent) -> list[str]:
    return [line.removeprefix("on ") for line in agent.lines("at-once") if line.startswith("on ")]


def two_threads(agent: WrappingAgent) -> None:
    """Start a program that moves one of its threads, and report its CPUs at the start."""
    agent.pod("threads", f"exec cmk isolate --pool=exclusive {sys.executable} -- -I {PROGRAM}")
    report("began", line=agent.until_written("threads", "moved")[0])


def threads(agent: WrappingAgent) -> None:
    """Report the masks of the program's threads after many passes of the agent."""
    own = agent.container("threads")["cpus"]
    (pid,) = agent.wrapped("threads")
    report(
        *("wrapped_threads",),
        masks=masks(pid),
        own=own,
        shared=agent.state()["sets"]["shared"],
        foreign=foreign_threads(pid, CPUSet.parse(own)),
    )


@contextmanager
def killed(agent: WrappingAgent) -> Iterator[None]:
    """Kill the agent."""
    agent.process.kill()
    yield
    agent.start()


@contextmanager
def stopped(agent: WrappingAgent) -> Iterator[None]:
    """Suspend the agent."""
    os.kill(agent.process.pid, signal.SIGSTOP)
    yield
    os.kill(agent.process.pid, signal.SIGCONT)


def number_comes_again(
    agent: WrappingAgent, name: str, without: Callable[[WrappingAgent], AbstractContextManager[None]]
) -> None:
    """End a command while the agent is suspended, and start another process of its container with the same pid."""
    before, told = agent.wrapped("at-once"), len(_told(agent))
    pid = min(before)
    folder = cgroup(pid)
    HELD.touch()
    with without(agent):
        kill(pid)
        another = start_as(pid, folder)
        HELD.unlink()
    agent.until("its core is taken again", lambda: _is_taken_again(agent, before))
    agent.until("the next command tells", lambda: len(_told(agent)) > told)
    after = agent.wrapped("at-once")
    report("number", agent=name, pid=pid, before=before, after=after, mask=masks(pid), told=_told(agent))
    another.kill()
    another.wait()


def _is_taken_again(agent: WrappingAgent, before: dict[int, str]) -> bool:
    now = agent.wrapped("at-once")
    return now.keys() != before.keys() and sorted(now.values()) == sorted(before.values())


def cycles(agent: WrappingAgent) -> None:
    """Start and end commands one after the other."""
    files = Path(f"/proc/{agent.process.pid}/fd")
    loop = f"i=0; while [ $i -lt {CYCLES} ]; do {ISOLATE} true || echo failed; i=$((i+1)); done; echo done"
    before, tasks = len(list(files.iterdir())), agent.tasks
    agent.pod("cycles", loop)
    lines = agent.until_written("cycles", "done")
    agent.until("none is left", lambda: agent.tasks == tasks)
    report("cycles", lines=lines, more_files=len(list(files.iterdir())) - before)
    agent.end("cycles")
