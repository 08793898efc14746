"""While the agent cannot answer, a pod that was promised CPUs does not start, and its user reads why."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from pinning.contract import GUARDED, GUARDED_VALUE
from pinning.machine.cpuset import CPUSet
from tests.environments import plain_http
from tests.environments.node.node import COMMAND, pod, until_nri
from tests.environments.server.daemon import free_port, running
from tests.environments.waiting import until
from tests.node.starts.over_nri import ISOLATE, lines, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.environments.node.node import Node

# The mark that the webhook sets on pods with claims that must fit.
MARKED = ISOLATE | {GUARDED: GUARDED_VALUE}


@pytest.fixture
def guarded(nri_node: Node, tmp_path: Path) -> Iterator[Node]:
    """Return the node with a guard beside the agent."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(sys.executable, "-W", "error", str(COMMAND), "guard", "--nri", str(nri_node.containerd.nri_socket)),
        *("--kubelet-state", str(nri_node.kubelet.cpu_manager_state), "--health-listen", address),
    ]

    def guards() -> bool:
        try:
            return plain_http.get(f"http://{address}/readyz").is_success
        except httpx.TransportError:
            return False

    with running("corepin guard", command, tmp_path / "guard.log") as daemon:
        daemon.wait_until(guards)
        yield nri_node


@contextmanager
def killed(node: Node) -> Iterator[None]:
    """Kill the agent, and start it again after the block."""
    node.agent.kill()
    try:
        yield
    finally:
        node.agent.start()


def hung(node: Node) -> AbstractContextManager[None]:
    """Suspend the agent until the block ends, so that it answers no request."""
    assert node.agent.daemon
    return node.agent.daemon.hung()


@pytest.mark.parametrize("trouble", [killed, hung])
def test_marked_pod_waits_for_the_agent(
    guarded: Node, trouble: Callable[[Node], AbstractContextManager[None]]
) -> None:
    """A marked pod waits for the agent with a reason in `kubectl describe pod`, while others start."""
    node = guarded
    with trouble(node):
        node.apply(pod("plain"), pod("marked", MARKED, cpu="1"))
        node.running("plain")
        until("described", lambda: "promised CPUs of its own" in node.kubectl("describe", "pod/marked"))
        # The kubelet writes the status after the event.
        until("status", lambda: "corepin's agent" in waiting(node, "marked").get("message", ""))
        assert waiting(node, "marked")["reason"] == "CreateContainerError"
    until_nri(node.agent)
    marked = node.running("marked")
    own = CPUSet.parse(until("first line", lambda: lines(node, "marked"))[0])
    assert (len(own), marked.cpus) == (1, own)
