"""The real command in containers of the `local` runtime, with a real agent and this machine's kernel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.kernel.procfs import PARENT, stat_fields
from demo.agent import allowed
from tests.environments.node.kernel_missing import cgroups_missing
from tests.environments.process.cmk_agent import CMKAgent

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is none to give away"),
]
TELLING = "env | grep ^CMK_CPUS | sort; grep Cpus_allowed_list /proc/self/status; echo $$; exec sleep 1000"

PART = 100  # of a thousand commands, which take a minute on a loaded machine


def until_there(file: Path) -> str:
    """Return a shell's command that waits for a file."""
    return f"until [ -e {file} ]; do sleep 0.05; done"


@contextmanager
def running(folder: Path) -> Iterator[CMKAgent]:
    """Run an agent, or skip the test without cgroups."""
    why = cgroups_missing()
    if why and os.environ.get("CI") == "true":
        pytest.fail(why)
    if why:
        pytest.skip(why)
    agent = CMKAgent(folder)
    with agent.running():
        yield agent


def test_the_command_runs_on_its_assigned_cpus(tmp_path: Path) -> None:
    """Environment and kernel agree on the CPUs, the pid is unchanged, and the exit code is the command's."""
    with running(tmp_path) as agent:
        last = len(os.sched_getaffinity(0)) - 1
        agent.pod("wrapped", f"cmk isolate --pool=exclusive sh -- -c '{TELLING}'; echo left with $?")
        lines = agent.until_written("wrapped", "Cpus_allowed_list")
        told = dict(line.split("=", 1) for line in lines if "=" in line)
        assert told["CMK_CPUS_ASSIGNED"] == str(last)
        assert told["CMK_CPUS_ASSIGNED_MASK"] == f"{1 << last:X}"
        assert told["CMK_CPUS_INFRA"] == ",".join(map(str, range(last)))
        assert f"Cpus_allowed_list:\t{last}" in lines
        agent.until("it is told of", lambda: bool(agent.tasks))
        ((pid, task),) = agent.tasks.items()
        assert task == ("exclusive", str(last))
        assert allowed(pid) == str(last)
        os.kill(pid, 15)
        agent.until_written("wrapped", "left with 143")
        agent.until("its core is free", lambda: not agent.tasks)


def test_a_core_is_lent_to_one_at_a_time(tmp_path: Path) -> None:
    """A second command is refused with exit code 1 and the reason, and gets the core when the first exits."""
    with running(tmp_path) as agent:
        isolate, runs = "cmk isolate --pool=exclusive", tmp_path / "runs"
        first = f"{isolate} sh -- -c 'touch {runs}; exec sleep 1000'"
        agent.pod(
            "two",
            f"{first} & {until_there(runs)}; while ! {isolate} echo got it; do sleep 0.1; done; wait",
        )
        assert any(
            "Not enough free cpu lists" in line for line in agent.until_written("two", "of the host has")
        )
        agent.until("the first is told of", lambda: bool(agent.tasks))
        (pid,) = agent.tasks
        os.kill(pid, 9)
        agent.until_written("two", "got it")


def test_an_agent_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """The next agent keeps the claim, and a command started in between waits for an agent."""
    why = cgroups_missing()
    if why:
        pytest.skip(why)
    agent = CMKAgent(tmp_path)
    (tmp_path / "pods").mkdir()
    with subprocess.Popen(agent.command, stderr=subprocess.DEVNULL) as process:
        agent.pod("wrapped", f"cmk isolate --pool=exclusive sh -- -c '{TELLING}'")
        agent.until_written("wrapped", "Cpus_allowed_list")
        agent.until("it is told of", lambda: bool(agent.tasks))
        before = agent.tasks
        process.kill()
    agent.pod("late", "cmk isolate --pool=exclusive true; echo left with $?", cores=0)
    with agent.running():
        agent.until("it is told of again", lambda: agent.tasks == before)
        lines = agent.until_written("late", "left with 1")
        assert any("put cmk.intel.com/exclusive-cores into its resources" in line for line in lines)
        (pid,) = before
        os.kill(pid, 9)
        agent.until("its core is free", lambda: not agent.tasks)


def test_process_1_stays_beside_the_cores_of_its_command(tmp_path: Path) -> None:
    """With CMK_INIT=1 pid 1 runs on the shared set and its child on the core, also after a restart."""
    why = cgroups_missing()
    if why:
        pytest.skip(why)
    agent = CMKAgent(tmp_path)
    (tmp_path / "pods").mkdir()
    last = len(os.sched_getaffinity(0)) - 1
    shared = "0" if last == 1 else f"0-{last - 1}"
    with subprocess.Popen(agent.command, stderr=subprocess.DEVNULL) as process:
        first = "unshare --pid --fork --kill-child env CMK_INIT=1"
        agent.pod("init", f"{first} cmk isolate --pool=exclusive sleep -- 1000; echo left with $?")
        agent.until("both are told of", lambda: len(agent.tasks) == 2)
        before = agent.tasks
        # The agent lists a process before it has saved the claim and moved it.
        agent.until("both are moved", lambda: all(allowed(pid) == cpus for pid, (_, cpus) in before.items()))
        process.kill()
    places = {pool: (pid, cpus) for pid, (pool, cpus) in before.items()}
    (parent, aside), (command, own) = places["infra"], places["exclusive"]
    assert (aside, own) == (allowed(parent), allowed(command)) == (shared, str(last))
    assert int(stat_fields(command)[PARENT]) == parent
    with agent.running():
        agent.until("both are told of again", lambda: agent.tasks == before)
        os.kill(parent, 15)
        agent.until_written("init", "left with 143")
        agent.until("the core is free", lambda: not agent.tasks)


def test_wrapped_container_has_the_cpus_of_its_environment(tmp_path: Path) -> None:
    """The shell stays on its core; commands in `infra`, or moved by taskset, run on the shared set."""
    with running(tmp_path) as agent:
        last = len(os.sched_getaffinity(0)) - 1
        shared = "0" if last == 1 else f"0-{last - 1}"
        look = "grep Cpus_allowed_list /proc/self/status"
        moved, helped = tmp_path / "moved", tmp_path / "helped"
        mover = f"{look}; taskset -cp $CMK_CPUS_INFRA $$ >/dev/null; {look}; touch {moved}; exec sleep 1000"
        helper = f"{look}; touch {helped}; exec sleep 1000"
        agent.pod(
            "mixed",
            f"{look}; cmk isolate --pool=exclusive sh -- -c '{mover}' & {until_there(moved)}; "
            f"cmk isolate --pool=infra sh -- -c '{helper}' & {until_there(helped)}; {look}; echo said; wait",
        )
        lines = [line.removeprefix("Cpus_allowed_list:\t") for line in agent.until_written("mixed", "said")]
        assert lines == [str(last), str(last), shared, shared, str(last), "said"]
        agent.until(
            "both are told",
            lambda: sorted(agent.tasks.values()) == [("exclusive", str(last)), ("infra", shared)],
        )
        exclusive = next(pid for pid, task in agent.tasks.items() if task[0] == "exclusive")
        assert allowed(exclusive) == shared


def test_child_processes_follow_the_pool(tmp_path: Path) -> None:
    """A child process started while the pool was small gets the larger pool later."""
    with running(tmp_path) as agent:
        last = len(os.sched_getaffinity(0)) - 1
        go = tmp_path / "go"
        starting = f"echo ready; {until_there(go)}; sleep 1000 & echo child $!; wait"
        agent.pod("wrapped", f"cmk isolate --pool=infra sh -- -c '{starting}'", cores=0)
        agent.until_written("wrapped", "ready")
        agent.until("it is told", lambda: bool(agent.tasks))
        (pid,) = agent.tasks
        whole = allowed(pid)
        agent.pod("owner", "sleep 1000")
        agent.until("the pool shrinks", lambda: agent.tasks[pid][1] != whole)
        shrunk = agent.tasks[pid][1]
        assert shrunk == ("0" if last == 1 else f"0-{last - 1}")
        go.touch()
        child = int(agent.until_written("wrapped", "child ")[-1].split()[1])
        assert [allowed(pid), allowed(child)] == [shrunk, shrunk]
        (tmp_path / "pods" / "owner.yaml").unlink()
        agent.until("the pool grows", lambda: agent.tasks[pid][1] == whole)
        agent.until("both follow", lambda: [allowed(pid), allowed(child)] == [whole, whole])


def test_a_thousand_commands_leak_nothing_in_the_agent(tmp_path: Path) -> None:
    """A thousand commands leave no claim and no file descriptor in the agent."""
    with running(tmp_path) as agent:
        files = Path(f"/proc/{agent.pid}/fd")
        isolate = "cmk isolate --pool=exclusive true || echo refused"
        agent.pod(
            "first", "cmk isolate --pool=infra true; echo done; exec sleep 1000", cores=0
        )  # opens the agent's own files first
        agent.until_written("first", "done")
        before = len(list(files.iterdir()))
        cycle = f"i=$((i+1)); [ $((i%{PART})) != 0 ] || echo $i done"
        agent.pod("cycles", f"i=0; while [ $i -lt 1000 ]; do {isolate}; {cycle}; done")
        parts = [f"{count} done" for count in range(PART, 1001, PART)]
        for part in parts:  # each has its own time limit
            agent.until_written("cycles", part)
        assert agent.lines("cycles") == parts
        agent.until("no claim is left", lambda: not agent.tasks)
        agent.until("no descriptor is left", lambda: len(list(files.iterdir())) <= before)
