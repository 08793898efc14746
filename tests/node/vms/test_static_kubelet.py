"""Virtual machines beside the kubelet's static policy: the kubelet gives the CPUs, the agent keeps the threads on them."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cri_api.v1 import api_pb2

from pinning.machine.cpuset import CPUSet
from tests.environments.node.containerd import IMAGE, install_packages
from tests.environments.node.node import pod
from tests.environments.node.settings import kubelet_settings, until_observing
from tests.environments.vm.guests import PACKAGES, Guest
from tests.environments.vm.kata.install import HANDLER
from tests.environments.vm.kata.sandbox import CGROUP_ONLY
from tests.environments.vm.machines import Machine, SocketsFolder
from tests.environments.vm.nodes import pid_in
from tests.environments.vm.pods import SOCKETS, kata_annotations, launcher_command, launcher_pod, mount_host
from tests.environments.vm.published_vm import published_vm, until_published
from tests.environments.vm.seen import see
from tests.environments.vm.threads import qemus
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Node
    from tests.environments.vm.threads import Truth

RUNTIME_CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": HANDLER}}
# Threads are outside of the sandbox's cgroup, where no cpuset of the kubelet reaches them.
OVERHEAD = {CGROUP_ONLY: "false"}


@pytest.fixture(scope="module")
def static_session(node_session: Node) -> Iterator[Node]:
    """Return the node whose kubelet gives CPUs out itself."""
    install_packages(PACKAGES)
    node_session.kubectl("apply", "-f", "-", input=json.dumps({**RUNTIME_CLASS, "handler": HANDLER}))
    reserved = until("the agent knows its node", node_session.agent.state)["sets"]["reserved"]
    with kubelet_settings(node_session, cpuManagerPolicy="static", reservedSystemCPUs=reserved):
        until_observing(node_session)
        yield node_session


@pytest.fixture
def static(static_session: Node) -> Iterator[Node]:
    """Return the node without pods; after the test remove its pods and check that the agent wrote no cpuset."""
    before = static_session.agent.metric("corepin_agent_cpuset_writes_total")
    yield static_session
    written = static_session.agent.metric("corepin_agent_cpuset_writes_total") - before
    static_session.clear()
    assert written == 0


def launcher(node: Node, guest: Guest) -> Machine:
    """Start a machine as KubeVirt does, with CPUs of its own."""
    sockets = SocketsFolder.new()
    document = launcher_pod("vm", guest, launcher_command(guest, "vm", SOCKETS), {})
    del document["metadata"]["uid"]
    mount_host(document, IMAGE, str(sockets.path))
    document["spec"]["hostNetwork"] = True
    (container,) = node.run(document)
    return Machine("vm", sockets.path, lambda: next(iter(qemus(container.pids)), None), sockets)


def sandbox(node: Node, guest: Guest, cpu: str | None) -> Machine:
    """Start a machine as Kata does, whose container asks for a CPU or for nothing."""
    document = pod("vm", kata_annotations(guest, OVERHEAD), cpu=cpu)
    document["spec"]["runtimeClassName"] = HANDLER
    if cpu:
        document["spec"]["containers"][0]["resources"]["limits"]["memory"] = "50Mi"
    node.apply(document)
    folder = until("the shim's folder", lambda: folder_of(node))
    return Machine("vm", folder, lambda: pid_in(folder / "pid"))


def folder_of(node: Node) -> Path | None:
    """Return the folder of the only sandbox of Kata's, None while there is none."""
    folders = list((node.containerd.directory / "kata").glob("*/pid"))
    return folders[0].parent if len(folders) == 1 else None


def update(node: Node, container: str, cpus: CPUSet) -> None:
    """Change the CPUs of a container over CRI as another client than the agent does."""
    linux = api_pb2.LinuxContainerResources(cpuset_cpus=str(cpus))
    request = api_pb2.UpdateContainerResourcesRequest(container_id=container, linux=linux)
    node.containerd.call("UpdateContainerResources", request, api_pb2.UpdateContainerResourcesResponse)


def sent(node: Node, container: str) -> str:
    """Return the cpuset that the runtime remembers of a container."""
    request = api_pb2.ContainerStatusRequest(container_id=container)
    answer = node.containerd.call("ContainerStatus", request, api_pb2.ContainerStatusResponse)
    return str(answer.status.resources.linux.cpuset_cpus)


def follows(node: Node, container: str, truth: Truth, cpus: CPUSet) -> bool:
    """Return whether every thread is on the sent CPUs; they are sent again if the kubelet wrote its own."""
    if sent(node, container) != str(cpus):
        update(node, container, cpus)
    return see(truth).is_all_on(cpus)


def container_id(node: Node) -> str | None:
    """Return the id of the container of a sandbox as soon as the kubelet knows it."""
    statuses = ((node.pod("vm") or {}).get("status") or {}).get("containerStatuses") or ()
    return next(
        (status["containerID"].partition("//")[2] for status in statuses if status.get("containerID")), None
    )


def test_launcher_is_pinned_inside_the_kubelet_s_cpus(static: Node) -> None:
    """A launcher's vCPUs have a CPU each of the kubelet's, other threads stay within them, and the status says so."""
    machine = launcher(static, Guest(1, iothreads=("iothread1",)))
    own = static.running("vm").cpus
    assert len(own) == 1
    until_published(static.agent, cpus=str(own), oneToOne=True)
    assert see(machine.truth()).is_all_on(own)
    machine.clean()


def test_sandbox_is_pinned_inside_the_kubelet_s_cpus(static: Node) -> None:
    """A sandbox's threads, also outside of the cgroup with the kubelet's cpuset, run on the kubelet's CPUs."""
    machine = sandbox(static, Guest(1, iothreads=("io0",)), cpu="1")
    until_published(static.agent, oneToOne=True)
    own = CPUSet.parse(published_vm(static.agent)["cpus"])
    assert len(own) == 1
    until("confined", lambda: see(machine.truth()).is_all_on(own))


def test_foreign_update_reaches_every_thread(static: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """All threads of a Kata sandbox follow a cpuset that another client writes to its container."""
    machine = sandbox(static, Guest(2, iothreads=("io0",)), cpu=None)
    container = until("container", lambda: container_id(static))
    truth = machine.truth()
    # The kubelet does so once, a while after the start.
    until("the kubelet has sent its own", lambda: sent(static, container))
    until("confined", lambda: see(truth).is_all_on(static.all))
    seconds = []
    for cpu in (0, 1, 0, 1):
        update(static, container, CPUSet((cpu,)))
        began = time.monotonic()
        until(f"on {cpu}", partial(follows, static, container, truth, CPUSet((cpu,))))
        seconds.append(round(time.monotonic() - began, 2))
    with capsys.disabled():
        sys.stdout.write(f"\nevery thread of a sandbox followed a foreign update after {seconds} s\n")
