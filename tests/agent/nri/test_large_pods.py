"""Pods with the maximum size of annotations: memory and CPU time of guard and agent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.nri.wire import Event
from agent.nri.wire import nri_pb2 as pb
from pinning.contract import GUARDED, GUARDED_VALUE
from tests.agent.nri.fake_runtime import FakeRuntime, Plugin, container, pod
from tests.agent.nri.guards import GuardProcess, guard_on
from tests.agent.nri.wire.plugins import Recorder
from tests.agent.nri.wire.serving import Served

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
