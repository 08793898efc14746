"""Fixtures: virtual machines without a pod, and nodes of both runtimes. All of them need root."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.environments.server.daemon import dies_with_parent, plain_environment
from tests.environments.vm.guests import PACKAGES, Guest, libvirt_command
from tests.environments.vm.machines import Machine, SocketsFolder
from tests.environments.vm.pods import MONITOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.environments.node.containerd import Containerd
    from tests.environments.vm.nodes import ContainerdNode, Launchers, LocalNode

_FIXTURES = {"qemu"}


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder that starts a machine."""
    for item in items:
        if item.path.parent.name == "vm" and not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("runtime")


@pytest.fixture(scope="session")
def qemu() -> None:
    """Install QEMU, or skip with the reason."""
    from tests.environments.node.containerd import install_packages

    install_packages(PACKAGES)


@pytest.fixture
def start(qemu: None) -> Iterator[Callable[[Guest], Machine]]:
    """Return a function that starts a machine without a pod; it returns once the monitor responds."""
    with ExitStack() as stack:
        yield lambda guest: _started(stack, guest)


def _started(stack: ExitStack, guest: Guest) -> Machine:
    sockets = SocketsFolder.new()
    command = libvirt_command(guest, "alone", sockets.path / MONITOR)
    process = subprocess.Popen(
        dies_with_parent(command),
        env=plain_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    machine = Machine("alone", sockets.path, lambda: process.pid, sockets)
    stack.callback(machine.clean)
    stack.callback(process.wait)
    stack.callback(process.kill)
    with machine.talk():
        return machine


@pytest.fixture
def local_node(qemu: None, tmp_path: Path) -> Iterator[LocalNode]:
    """Return a node of the local runtime, with an agent."""
    from tests.environments.vm.nodes import run_local_node

    with run_local_node(tmp_path) as node:
        yield node


@pytest.fixture
def node_config() -> dict[str, object]:
    """Return the configuration of the agent, which a test may change before the node is created."""
    return {}


@pytest.fixture(scope="session")
def newest_containerd(qemu: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    """Return a running containerd of the newest version."""
    from tests.environments.node.containerd import VERSIONS, start_containerd

    with start_containerd(VERSIONS[-1], tmp_path_factory.mktemp("containerd-vm-")) as containerd:
        yield containerd


@pytest.fixture
def sandboxes(
    newest_containerd: Containerd, node_config: dict[str, object], tmp_path: Path
) -> Iterator[ContainerdNode]:
    """Return a node that starts virtual machines as Kata does, with an agent."""
    from tests.environments.vm.nodes import run_containerd_node

    with run_containerd_node(newest_containerd, tmp_path, node_config) as node:
        yield node


@pytest.fixture
def nri_sandboxes(newest_containerd: Containerd, tmp_path: Path) -> Iterator[ContainerdNode]:
    """Return a node that starts virtual machines as Kata does, with an agent as an NRI plugin."""
    from tests.environments.vm.nodes import run_containerd_node

    with run_containerd_node(newest_containerd, tmp_path, nri=str(newest_containerd.nri_socket)) as node:
        yield node


@pytest.fixture(scope="class")
def both_nodes(
    request: pytest.FixtureRequest, newest_containerd: Containerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Launchers, Launchers]]:
    """Return a node of each runtime, with an agent that has the test class's configuration; the class shares them."""
    from tests.environments.vm.nodes import run_containerd_node, run_local_node

    config, folder = request.cls.CONFIG, tmp_path_factory.mktemp
    with (
        run_local_node(folder("local-vm-"), config) as local,
        run_containerd_node(newest_containerd, folder("node-vm-"), config) as node,
    ):
        yield local, node


@pytest.fixture
def launchers(both_nodes: tuple[Launchers, Launchers]) -> Iterator[tuple[Launchers, Launchers]]:
    """Return a node of each runtime that starts virtual machines as KubeVirt does; remove them after the test."""
    before = [frozenset(node.machines) for node in both_nodes]
    yield both_nodes
    for node, kept in zip(both_nodes, before, strict=True):
        for name in node.machines.keys() - kept:
            node.remove(name)


@pytest.fixture
def containerd_node(qemu: None, containerd: Containerd, tmp_path: Path) -> Iterator[ContainerdNode]:
    """Return a node of real containers, with an agent."""
    from tests.environments.vm.nodes import run_containerd_node

    with run_containerd_node(containerd, tmp_path) as node:
        yield node
