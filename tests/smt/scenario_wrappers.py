"""Inside the guest: containers whose commands run under `cmk isolate`, and an agent that is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.webhook import DemoFailed
from pinning.machine.cpuset import CPUSet
from tests.agent.wrappers.cmk_agent import CMKAgent
from tests.smt.inside import SECONDS, report

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER: Final = Path("/tmp/wrappers")
COMMAND: Final = Path(sys.prefix, "libexec", "cmk")
PROGRAM: Final = Path(__file__).with_name("two_threads.py")
TELL: Final = "sh -- -c 'echo on $CMK_CPUS_ASSIGNED; exec sleep 1000000'"
ISOLATE: Final = "cmk isolate --pool=exclusive"
CYCLES: Final = 1000
RACERS: Final = 50


class PatientAgent(CMKAgent):
    """An agent on an emulated machine."""

    def until(self, what: str, is_so: Callable[[], bool]) -> float:
        """Wait until something is so."""
        began = time.monotonic()
        while not is_so():
            if time.monotonic() - began > SECONDS:
                raise DemoFailed(f"the agent: {what}: not within {SECONDS:.0f} s")
            time.sleep(0.05)
        return time.monotonic() - began

    @property
    def pid(self) -> int:
        """The agent's process."""
        return int((FOLDER / "state" / "lock").read_text())


def wrappers() -> None:
    """Four at once and one too many, two threads, a killed agent, fifty that race, and a thousand one after the other."""
    (FOLDER / "pods").mkdir(parents=True)
    agent = PatientAgent(FOLDER, COMMAND)
    with subprocess.Popen(agent.command, stderr=subprocess.DEVNULL) as first:
        _four(agent)
        _two_threads(agent)
        before = agent.tasks
        first.send_signal(signal.SIGKILL)
    with agent.running():
        agent.until("it knows them again", lambda: agent.tasks == before)
        _race(agent)
        _cycles(agent)
        report("wrapped_threads", **_threads(agent))
    report("wrappers_end", left=agent.left())


def _four(agent: CMKAgent) -> None:
    script = " & ".join([f"{ISOLATE} {TELL}"] * 4)
    agent.pod("four", f"{script} & wait", cores=4)
    agent.until("four run", lambda: sum(line.startswith("on ") for line in agent.lines("four")) == 4)
    tasks = agent.tasks
    allowed = [str(CPUSet(os.sched_getaffinity(pid))) for pid in tasks]
    report("four", told=agent.lines("four"), tasks=[cpus for _, cpus in tasks.values()], allowed=allowed)


def _two_threads(agent: CMKAgent) -> None:
    agent.pod("threads", f"{ISOLATE} {sys.executable} -I {PROGRAM}")
    agent.until_written("threads", "moved")


def _threads(agent: CMKAgent) -> dict[str, object]:
    """Return where the threads of the program may run, after the agent has looked at them more than once."""
    container = agent.container("threads")
    (pid,) = (task["pid"] for task in agent.state()["tasks"] if task["container"] == "default/threads/app")
    masks = [
        str(CPUSet(os.sched_getaffinity(int(task.name)))) for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return {"masks": sorted(masks), "own": container["cpus"], "shared": agent.state()["sets"]["shared"]}


def _race(agent: CMKAgent) -> None:
    agent.pod("race", f"for i in $(seq {RACERS}); do ({ISOLATE} {TELL} || echo lost) & done; wait", cores=1)

    def lines() -> list[str]:
        return [line for line in agent.lines("race") if line.startswith(("on ", "lost"))]

    agent.until("all have raced", lambda: len(lines()) == RACERS)
    report("race", lines=lines())


def _cycles(agent: PatientAgent) -> None:
    files = Path(f"/proc/{agent.pid}/fd")
    loop = f"i=0; while [ $i -lt {CYCLES} ]; do {ISOLATE} true || echo failed; i=$((i+1)); done; echo done"
    before, tasks = len(list(files.iterdir())), agent.tasks
    agent.pod("cycles", loop)
    lines = agent.until_written("cycles", "done")
    agent.until("none is left", lambda: agent.tasks == tasks)
    report("cycles", lines=lines, more_files=len(list(files.iterdir())) - before)


if __name__ == "__main__":
    wrappers()
