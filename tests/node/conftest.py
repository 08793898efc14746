"""One real node for all tests of this folder."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.environments.server.build import cache_folder, find
from tests.environments.server.catalog import KUBE_SCHEDULER, KUBELET

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.environments.node.containerd import Containerd
    from tests.environments.node.node import AgentProcess, Node
    from tests.environments.server.catalog import Server

NOT_READY = "node.kubernetes.io/not-ready"  # taint that a controller manager would remove; here is none
CONFLIST = """{
  "cniVersion": "1.0.0",
  "name": "never-called",
  "plugins": [{"type": "loopback"}]
}"""


@pytest.hookimpl(tryfirst=True)  # must run before pytest applies `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the node; it needs the servers of both other markers too."""
    for item in items:
        if "node_session" in getattr(item, "fixturenames", ()):
            for marker in ("node", "server", "runtime"):
                item.add_marker(marker)


@pytest.fixture(scope="session")
def node_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Return a running node with the agent; skipped with the reason where there can be none."""
    kubelet, scheduler = (_program(server) for server in (KUBELET, KUBE_SCHEDULER))
    with ExitStack() as stack:
        yield _start(stack, kubelet, scheduler, tmp_path_factory.mktemp("node-"))


def _program(server: Server) -> Path:
    from tests.environments.node.containerd import _missing

    if len(os.sched_getaffinity(0)) == 1:
        raise _missing("one CPU can be reserved or given out, not both")
    path = find(server, cache_folder())
    if path is None:
        raise _missing(f"{server.label} is not built; run `python -m tests.environments.server`")
    return path


def _start(stack: ExitStack, kubelet_program: Path, scheduler_program: Path, directory: Path) -> Node:
    from tests.environments.node.kubelet import folders_apart, start_kubelet
    from tests.environments.node.node import Node, hostname, places
    from tests.environments.server.control_plane import start_control_plane, start_scheduler
    from tests.environments.waiting import until
    from tests.node.proxy import serve_proxy

    name = hostname()
    plane = stack.enter_context(start_control_plane(_made(directory / "api")))
    containerd = _start_runtime(stack, directory / "containerd")
    folder = containerd.directory / "kubelet"  # its mounts are removed together with those of containerd
    host = stack.enter_context(folders_apart(folder))
    kubelet = stack.enter_context(
        start_kubelet(
            *(kubelet_program, plane.server, name, folder, containerd.socket, containerd.cgroup), host=host
        )
    )
    stack.enter_context(start_scheduler(scheduler_program, plane.server))
    proxy = stack.enter_context(serve_proxy(plane.port, str(plane.server.ca_file)))
    flags = ("--node", name, *places(containerd, kubelet), "--api-server", proxy.url)
    agent = _agent(_made(directory / "agent"), plane.server.admin_token, flags)
    node = Node(name, plane, containerd, kubelet, proxy, agent)
    plane.server.create_namespace("corepin-agent")
    until("the kubelet is ready", node.is_ready)
    node.kubectl("taint", "node", name, f"{NOT_READY}-")
    stack.enter_context(node.agent.stack)
    node.agent.start()
    return node


def _agent(directory: Path, admin_token: str, flags: tuple[str, ...]) -> AgentProcess:
    from tests.environments.node.node import AgentProcess

    token = directory / "token"
    token.write_text(admin_token)
    own = ("--state-dir", str(directory / "state"), "--api-token", str(token), "--nri", "off")
    return AgentProcess((*flags, *own), directory)


def _start_runtime(stack: ExitStack, directory: Path) -> Containerd:
    from tests.environments.node.containerd import start_containerd

    _made(_made(directory) / "cni").joinpath("10-never.conflist").write_text(CONFLIST)
    return stack.enter_context(start_containerd("2.4", directory))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture
def node(node_session: Node) -> Iterator[Node]:
    """Return the node without pods; those of the test are removed after it."""
    yield node_session
    node_session.clear()
