"""The checks of virtual machines and their facts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.doctor.check import Check, Verdict
from agent.doctor.checks import examine
from agent.doctor.facts import Places, read_facts
from agent.doctor.vms import VMFacts, vm_checks
from agent.kubelet.pod_resources import socket_beside
from pinning.contract import KubeletPolicy
from tests.agent.doctor.nodes import AGENT, BARE, FINE
from tests.agent.kubelet.fake_kubelet import FakeKubelet, pod

HANDLER = {"kubevirt.io/schedulable": "true"}
TRUE = HANDLER | {"cpumanager": "true", "kubevirt.io/cpumanager": "true"}
FALSE = HANDLER | {"cpumanager": "false", "kubevirt.io/cpumanager": "false"}


def the_check(facts: VMFacts, *, can_pin: bool = True) -> Check:
    """Return the only check."""
    (check,) = vm_checks(facts, can_pin=can_pin)
    return check


def test_node_without_virtual_machines_has_no_check() -> None:
    """Without KVM, KubeVirt or a kubelet that allocates there is no check."""
    assert list(vm_checks(VMFacts(), can_pin=True)) == []
    assert list(vm_checks(VMFacts(labels={"x": "y"}), can_pin=True)) == []


@pytest.mark.parametrize(
    ("facts", "message", "remedy"),
    [
        pytest.param(VMFacts(has_kvm=True, has_debugfs=True), "(debugfs)", "", id="debugfs"),
        pytest.param(VMFacts(has_kvm=True, may_probe=True), "their system calls", "debugfs", id="probe"),
        pytest.param(VMFacts(has_kvm=True), "names alone", "component vm-probe", id="names alone"),
    ],
)
def test_vcpu_recognition_is_no_finding(facts: VMFacts, message: str, remedy: str) -> None:
    """Recognizing vCPUs by thread names passes; the remedy names a better way."""
    check = the_check(facts)
    assert check.verdict is Verdict.OK
    assert message in check.message
    assert remedy in check.remedy


@pytest.mark.parametrize(
    ("labels", "can_pin", "verdict", "message"),
    [
        pytest.param(TRUE, True, Verdict.OK, "may be placed here", id="right labels"),
        pytest.param(FALSE, True, Verdict.FINDING, "cpumanager=false", id="overwritten"),
        pytest.param(HANDLER, True, Verdict.FINDING, "kubevirt.io/cpumanager=", id="never written"),
        pytest.param(FALSE, False, Verdict.OK, "no machine with dedicated CPUs", id="no allocation"),
    ],
)
def test_labels_beside_kubevirts_handler(
    labels: dict[str, str],
    can_pin: bool,
    verdict: Verdict,
    message: str,
) -> None:
    """Without KubeVirt's label a node that can pin gets no machines with dedicated CPUs."""
    check = the_check(VMFacts(labels=labels), can_pin=can_pin)
    assert (check.subject, check.verdict) == ("KubeVirt", verdict)
    assert message in check.message


@pytest.mark.parametrize(
    ("facts", "can_pin"),
    [
        pytest.param(FINE, True, id="the agent allocates"),
        pytest.param(replace(FINE, agent=replace(AGENT, observes=True)), False, id="no allocation"),
        pytest.param(replace(BARE, kubelet=KubeletPolicy.STATIC), True, id="the kubelet allocates"),
        pytest.param(BARE, False, id="nothing is known"),
    ],
)
def test_label_is_a_finding_only_if_cpus_are_allocated(facts: object, can_pin: bool) -> None:
    """A label "false" is a finding only if the agent or the kubelet allocates CPUs."""
    facts = replace(facts, vms=VMFacts(labels=FALSE))  # type: ignore[type-var]
    (check,) = (check for check in examine(facts) if check.subject == "KubeVirt")  # type: ignore[arg-type]
    assert (check.verdict is Verdict.FINDING) is can_pin


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Return a machine whose kubelet has the static policy."""
    (tmp_path / "cpu_manager_state").write_text('{"policyName": "static"}')
    return Places(
        tmp_path,
        tmp_path,
        kubelet_state=tmp_path / "cpu_manager_state",
        runtime=tmp_path / "no.sock",
        nri=tmp_path / "no.sock",
        debugfs=tmp_path / "debug",
    )


def test_kvm_debugfs_and_capability_are_seen(places: Places) -> None:
    """The module shows KVM, a folder its debugfs, and the capability the right to probe."""
    assert read_facts(places, None, 0).vms[:3] == (False, False, False)
    for folder in ("sys/module/kvm", "debug/kvm", "proc/self"):
        (places.root / folder).mkdir(parents=True)
    status = places.root / "proc/self/status"
    status.write_text("Name:\tcorepin\nCapEff:\t0000000000880000\n")  # SYS_PTRACE and SYS_NICE
    assert read_facts(places, None, 0).vms[:3] == (True, True, True)
    status.write_text("Name:\tcorepin\nCapEff:\t0000000000800000\n")
    assert read_facts(places, None, 0).vms[:3] == (True, True, False)


@pytest.fixture
def kubelet(places: Places) -> Iterator[FakeKubelet]:
    """Return a kubelet that reports one pod."""
    socket = socket_beside(places.kubelet_state)
    socket.parent.mkdir()
    fake = FakeKubelet(socket)
    fake.lists(pod("a", {"main": [1]}))
    started, loop = threading.Event(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with fake.serving():
            started.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait()
    yield fake
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


def test_static_kubelet_is_asked(places: Places, kubelet: FakeKubelet) -> None:
    """If a kubelet with the static policy reports its CPUs, the check passes without a remedy."""
    facts = read_facts(places, None, 0).vms
    assert (facts.kubelet_silence, kubelet.asked) == ("", 1)
    assert the_check(facts).verdict is Verdict.OK


def test_silent_static_kubelet_is_a_finding(places: Places) -> None:
    """The finding has the reason and the folder to mount; a kubelet without static policy is not asked."""
    check = the_check(read_facts(places, None, 0).vms)
    assert check.verdict is Verdict.FINDING
    assert str(socket_beside(places.kubelet_state)) in check.message
    assert "pod-resources" in check.remedy
    places.kubelet_state.write_text('{"policyName": "none"}')
    assert read_facts(places, None, 0).vms.kubelet_silence is None
