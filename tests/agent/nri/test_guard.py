"""Containers that the guard rejects, and its messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from agent.nri.guard import AGENT, AWAY, GUARD, SILENT, Guard
from agent.nri.wire import CPUSET_CPUS, CPUSET_MEMS, Event
from agent.nri.wire import nri_pb2 as pb
from pinning.contract import GUARDED, GUARDED_VALUE
from tests.agent.nri.fake_runtime import FakeRuntime, Plugin, container, pod
from tests.agent.nri.guards import GuardProcess, guard_on
from tests.agent.nri.wire.plugins import Recorder
from tests.agent.nri.wire.serving import Served

ALL: Final = ("10-corepin", "90-corepin-guard")
MARKED: Final = {GUARDED: "true"}


def created(
    cpus: str = "",
    owner: str = "",
    *,
    annotations: Mapping[str, str] = MARKED,
    namespace: str = "team",
    plugins: tuple[str, ...] = ALL,
    field: int = CPUSET_CPUS,
    owned: str = "c1",
    handler: str = "runc",
) -> pb.ValidateContainerAdjustmentRequest:
    """Return the validation request for a container `main`."""
    request = pb.ValidateContainerAdjustmentRequest(
        pod=pb.PodSandbox(
            id="p1", name="web", namespace=namespace, annotations=annotations, runtime_handler=handler
        ),
        container=pb.Container(id="c1", pod_sandbox_id="p1", name="main"),
    )
    request.adjust.linux.resources.cpu.cpus = cpus
    for plugin in plugins:
        index, _, name = plugin.partition("-")
        request.plugins.add(name=name, index=index)
    if owner:
        request.owners.owners[owned].simple[field] = owner
    return request


def claiming(mark: str | None = None, **more: str) -> pb.ValidateContainerAdjustmentRequest:
    """Return the request for a container with CDI devices, one of them with the CPUs of a claim."""
    request = created(annotations={} if mark is None else {GUARDED: mark}, **more)  # type: ignore[arg-type]
    for name in ("nvidia.com/gpu=0", "corepin.io/cpu=claim-00000000-0000-4000-8000-000000000001-cpu"):
        request.container.CDI_devices.add(name=name)
    return request


def judged(request: pb.ValidateContainerAdjustmentRequest, *, observes: bool = False) -> str:
    """Return the guard's reason to reject a container, or "" if it accepts it."""
    return Guard(frozenset({"kube-system", "corepin-agent"}), lambda: observes).validate(request)


def test_plugin_names_are_those_of_the_runtime() -> None:
    """The guard's plugin runs after the agent's plugin, and has the agent's plugin name in its configuration."""
    assert (str(AGENT), str(GUARD)) == ALL


def test_a_container_with_cpus_from_the_agent_is_accepted() -> None:
    """A marked container whose CPUs the agent has set is accepted."""
    assert judged(created("2-3", str(AGENT))) == ""


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        pytest.param(created(plugins=("90-corepin-guard",)), AWAY, id="agent away"),
        pytest.param(created(plugins=("20-corepin",)), AWAY, id="of another index"),
        pytest.param(created(), SILENT, id="agent silent"),
        pytest.param(created("0-7"), SILENT, id="owned by nobody"),
        pytest.param(created("", str(AGENT)), SILENT, id="an empty set"),
        pytest.param(created("2-3", str(AGENT), field=CPUSET_MEMS), SILENT, id="memory nodes alone"),
        pytest.param(created("2-3", str(AGENT), owned="c2"), SILENT, id="another container's"),
        pytest.param(created("2-3", "50-balloons"), "NRI plugin 50-balloons chose its CPUs", id="another plugin's"),
    ],
)  # fmt: skip
def test_a_marked_container_without_is_held_back(
    request_: pb.ValidateContainerAdjustmentRequest, why: str
) -> None:
    """The reason for a rejection names the container and what it lacks, in less than 300 characters."""
    text = judged(request_)
    assert text.startswith(f"container main was promised CPUs of its own, but {why}")
    assert len(text) < 300


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(created(annotations={}), id="unmarked"),
        pytest.param(created(annotations={GUARDED: "false"}), id="rather unpinned than late"),
        pytest.param(created(namespace="kube-system"), id="system"),
        pytest.param(created(namespace="corepin-agent"), id="ours"),
        pytest.param(created(handler="kata-qemu"), id="in a virtual machine, by a runtime class"),
    ],
)
def test_who_is_not_guarded_starts(request_: pb.ValidateContainerAdjustmentRequest) -> None:
    """The guard accepts unmarked pods, pods of exempt namespaces and pods in virtual machines."""
    assert judged(request_) == ""


def test_everything_is_accepted_while_the_agent_observes() -> None:
    """While the agent observes it assigns no CPUs, so the guard accepts every container."""
    assert judged(created(), observes=True) == ""


def test_mode_is_read_only_before_a_rejection() -> None:
    """The guard reads from files whether the agent observes only before it rejects a container."""
    asked = []

    def observes() -> bool:
        asked.append(True)
        return False

    guard = Guard(frozenset(), observes)
    guard.validate(created("2-3", str(AGENT)))
    guard.validate(created(annotations={}))
    assert asked == []
    guard.validate(created())
    assert asked == [True]


def test_guard_changes_no_container() -> None:
    """The guard's other handlers return empty answers."""
    guard = Guard(frozenset(), lambda: False)
    pod, container = pb.PodSandbox(id="p1"), pb.Container(id="c1")
    assert list(guard.synchronize([pb.KnownPodSandbox(id="p1")], [pb.KnownContainer(id="c1")])) == []
    assert guard.create_container(pod, container) == pb.CreateContainerResponse()
    assert guard.update_container(pod, container, pb.LinuxResources()) == pb.UpdateContainerResponse()


def test_a_container_with_a_claim_is_rejected_without_a_mark() -> None:
    """A container with the device of a claim is rejected without the agent's CPUs, unless its pod's mark is false."""
    assert "corepin's agent gave it none in time" in judged(claiming())
    assert judged(claiming(cpus="2-3", owner=str(AGENT))) == ""
    assert judged(claiming(namespace="kube-system")) == ""
    assert judged(claiming(mark="false")) == ""
    other = created(annotations={})
    other.container.CDI_devices.add(name="nvidia.com/gpu=0")
    assert judged(other) == ""


ANNOTATIONS = {f"k{number}": "" for number in range(60_000)}  # 236 kB by the API server's count
PODS = 25
GUARD_LIMIT = 64 * 2**20  # manifests/components/guard
ANSWER_SECONDS = 0.2  # limit of CPU time for one answer; a runtime waits 2 s


def crowded(name: str) -> pb.PodSandbox:
    """Return a marked sandbox with 60,000 annotations."""
    return pod(name, annotations={**ANNOTATIONS, GUARDED: GUARDED_VALUE})


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[FakeRuntime]:
    """Return a runtime without plugins."""
    with FakeRuntime(tmp_path / "nri.sock") as fake:
        yield fake


def peak(guard: GuardProcess) -> int:
    """Return the peak resident memory of the guard, in bytes."""
    status = Path(f"/proc/{guard.daemon.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def verdict(plugin: Plugin, of: pb.PodSandbox) -> str:
    """Return a plugin's reason to reject a container without CPUs."""
    made = container("main", of.name)
    return plugin.validate(pb.ValidateContainerAdjustmentRequest(pod=of, container=made))


def test_guard_stays_below_its_limit(runtime: FakeRuntime, tmp_path: Path) -> None:
    """The guard stays below its memory limit when 25 pods have 60,000 annotations each and it validates all of them."""
    pods = [crowded(f"p{number}") for number in range(PODS)]
    with guard_on(runtime.path, tmp_path) as guard:
        plugin = runtime.plugin(pods, parts=PODS)
        for each in pods:
            assert "was promised CPUs of its own" in verdict(plugin, each)
        assert peak(guard) < GUARD_LIMIT


@pytest.mark.parametrize("what", ["create", "validate", "event"])
def test_answer_about_a_crowded_pod_leaves_time(what: str) -> None:
    """An answer about such a pod takes at most a tenth of the runtime's timeout, including encoding and decoding."""
    served = Served(handlers=Recorder())
    served.runtime.register()
    of, made = crowded("a"), container("main", "a")
    began = time.process_time()
    if what == "create":
        served.runtime.create(of, made)
    elif what == "validate":
        verdict(served.runtime, of)
    else:
        served.runtime.event(Event.START_CONTAINER, of, made)
    assert time.process_time() - began < ANSWER_SECONDS
    served.close()
