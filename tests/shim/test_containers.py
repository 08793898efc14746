"""The command in restricted containers of a real runtime, with preset answers of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.environments.waiting import until
from tests.shim.containers import BUSYBOX, EMPTY, Locked, load_empty_image, run_locked

if TYPE_CHECKING:
    from tests.environments.node.containerd import Containerd
    from tests.shim.agent import FakeAgent

SHARED = ("/opt/bin/cmk", "isolate", "--conf-dir=/etc/cmk", "--pool=shared")


def run(containerd: Containerd, agent: FakeAgent, *words: str, image: str = BUSYBOX, **env: str) -> Locked:
    """Start a container that runs `cmk isolate`."""
    return run_locked(containerd, image, [*SHARED, *words], agent.folder, env)


def test_image_without_any_file(containerd: Containerd, agent: FakeAgent) -> None:
    """In an empty read-only image, unprivileged and under the seccomp profile, the shim executes the command."""
    load_empty_image(containerd)
    container = run(containerd, agent, "/opt/bin/cmk", "--", "--version", image=EMPTY)

    assert container.exit_code() == 0
    container.wait_for_last_line("CMK v1.5.2 (corepin 0.1.0)")
    assert len(agent.asked) == 1


def test_container_is_locked_up(containerd: Containerd, agent: FakeAgent) -> None:
    """The test containers have no capabilities, no new privileges, a seccomp filter and another user than root."""
    words = ("sh", "--", "-c", "busybox grep -E '^(CapEff|NoNewPrivs|Seccomp|Uid):' /proc/self/status")
    container = run(containerd, agent, *words)

    assert container.exit_code() == 0
    until("four lines", lambda: len(container.written("stdout")) == 4)  # copied after its end
    found = dict(line.split(":", 1) for line in container.written("stdout"))
    assert (int(found["CapEff"], 16), int(found["NoNewPrivs"]), int(found["Seccomp"])) == (0, 1, 2)
    assert found["Uid"].split()[0] == "65534"


def test_exit_code_reaches_the_kubelet(containerd: Containerd, agent: FakeAgent) -> None:
    """The container's exit code is the command's."""
    assert run(containerd, agent, "sh", "--", "-c", "exit 7").exit_code() == 7


def test_stopped_container_handles_the_signal(containerd: Containerd, agent: FakeAgent) -> None:
    """SIGTERM reaches the command as the container's first process."""
    script = "trap 'echo stopped; exit 42' TERM; echo ready; while :; do busybox sleep 0.05; done"
    container = run(containerd, agent, "sh", "--", "-c", script)
    until("the command", lambda: "ready" in container.written("stdout"))
    container.stop()

    assert container.exit_code() == 42
    container.wait_for_last_line("stopped")


def test_command_that_ignores_signals_as_process_1_stops_below_one(
    containerd: Containerd, agent: FakeAgent
) -> None:
    """With CMK_INIT=1 `sleep` ends at SIGTERM; as process 1 it would ignore the signal."""
    words = ("busybox", "--", "sleep", "10000")
    container = run(containerd, agent, *words, CMK_INIT="1")
    until("the command", lambda: len(agent.asked) == 2)
    container.stop()

    assert container.exit_code() == 143


def test_container_that_waits_for_the_agent_stops_at_once(
    containerd: Containerd, no_agent: FakeAgent
) -> None:
    """A container whose shim waits for the agent ends at SIGTERM, which the shim handles as process 1."""
    container = run(containerd, no_agent, "true", CMK_LOCK_TIMEOUT="3600")
    until("its word", lambda: "waiting up to 3600 s" in "".join(container.written("stderr")))
    container.stop()

    assert container.exit_code() == 143


def test_environment_reaches_the_command(containerd: Containerd, agent: FakeAgent) -> None:
    """The command has the agent's variables and the container's own."""
    script = 'echo "$CMK_CPUS_ASSIGNED $CMK_CPUS_ASSIGNED_MASK $CMK_CPUS_SHARED $CMK_CPUS_INFRA $MINE"'
    container = run(containerd, agent, "sh", "--", "-c", script, MINE="kept")

    assert container.exit_code() == 0
    container.wait_for_last_line("1,3 A 0 0,2 kept")
