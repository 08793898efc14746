"""The checks of NRI and of held back containers, by runtime and version."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.doctor.check import Check, Verdict
from agent.doctor.checks import examine
from agent.doctor.facts import Places, read_facts
from agent.doctor.nri import NOT_WANTED, AgentNRI, Socket, held_back_checks, nri_checks
from agent.doctor.nri_socket import look_at
from agent.doctor.vms import VMFacts, vm_checks
from agent.kubelet.pod_resources import socket_beside
from pinning.contract import KubeletPolicy
from tests.agent.doctor.nodes import AGENT, BARE, FINE
from tests.agent.kubelet.fake_kubelet import FakeKubelet, pod

NOBODY = 65534
NEW = "containerd 2.4.2"
HOLDS = AgentNRI(holds=True)
OUT = AgentNRI(reason="the runtime closed the connection")


def check(socket: Socket, agent: AgentNRI | None = None, runtime: str = NEW) -> Check:
    """Return the only check."""
    (checked,) = nri_checks(runtime, socket, agent)
    return checked


@pytest.mark.parametrize(
    ("socket", "agent", "verdict", "message"),
    [
        pytest.param(Socket.ANSWERS, HOLDS, Verdict.OK, "connected: containers get their CPUs before", id="connected"),
        pytest.param(Socket.ANSWERS, None, Verdict.OK, "its socket answers: with an agent", id="no agent"),
        pytest.param(Socket.ANSWERS, OUT, Verdict.FINDING, "(the runtime closed the connection);", id="refused"),
        pytest.param(Socket.SILENT, OUT, Verdict.FINDING, "no process listens", id="silent"),
        pytest.param(Socket.HIDDEN, None, Verdict.UNKNOWN, "only root", id="not root"),
        pytest.param(Socket.ABSENT, OUT, Verdict.OK, "its socket does not exist", id="absent"),
        pytest.param(Socket.NO_FOLDER, OUT, Verdict.OK, "its socket does not exist", id="no folder"),
        pytest.param(Socket.SILENT, NOT_WANTED, Verdict.OK, "--nri off", id="not wanted"),
    ],
)  # fmt: skip
def test_nri_is_a_finding_only_if_it_is_offered_and_unusable(
    socket: Socket, agent: AgentNRI | None, verdict: Verdict, message: str
) -> None:
    """NRI is a finding only if the runtime offers it and the agent wants it but cannot use it."""
    checked = check(socket, agent)

    assert (checked.subject, checked.verdict) == ("NRI", verdict)
    assert message in checked.message
    assert bool(checked.remedy) >= (verdict is not Verdict.OK)


@pytest.mark.parametrize(
    ("runtime", "remedy"),
    [
        pytest.param("containerd 1.6.20~ds1", "it came with containerd 1.7", id="containerd 1.6"),
        pytest.param("containerd v1.7.24", "`disable = false`", id="containerd 1.7"),
        pytest.param("containerd 2.0.0", "remove `disable = true` from", id="containerd 2"),
        pytest.param("cri-o 1.25.4", "it came with cri-o 1.26", id="CRI-O 1.25"),
        pytest.param("cri-o 1.29.1", "`enable_nri = true`", id="CRI-O 1.29"),
        pytest.param("cri-o 1.30.1", "remove `enable_nri = false` from", id="CRI-O 1.30"),
        pytest.param("docker 28.0", "", id="another runtime"),
        pytest.param("containerd unknown", "", id="no version"),
    ],
)
def test_the_remedy_names_how_to_enable_nri_in_this_version(runtime: str, remedy: str) -> None:
    """The remedy depends on runtime and version; for unknown ones there is none."""
    checked = check(Socket.ABSENT, OUT, runtime)

    assert checked.verdict is Verdict.OK
    assert remedy in checked.remedy
    assert bool(checked.remedy) == bool(remedy)


def test_remedy_without_a_folder_names_the_component() -> None:
    """Without the folder either NRI or the pod's component is missing, so the remedy has both."""
    assert check(Socket.NO_FOLDER).remedy.startswith("for the agent's pod take the component nri")
    assert "component" not in check(Socket.ABSENT).remedy
    assert "component" not in check(Socket.NO_FOLDER, runtime="containerd 1.6.20").remedy


@pytest.mark.parametrize(
    ("runtime", "holds", "is_guarded", "message", "remedy"),
    [
        pytest.param(NEW, True, True, "also while the agent is not connected", "", id="guard"),
        pytest.param(NEW, True, False, "starts on any CPU", "the component guard", id="no guard"),
        pytest.param("containerd 2.1.4", True, False, "on any CPU", "containerd 2.2 or later", id="too old"),
        pytest.param("cri-o 1.34.0", True, False, "on any CPU", "the component guard", id="CRI-O"),
        pytest.param("cri-o 1.33.5", True, False, "on any CPU", "with CRI-O 1.34 or later", id="CRI-O too old"),
        pytest.param("other 1.0", True, False, "on any CPU", "the component guard", id="another runtime"),
        pytest.param("containerd 1.6.20", False, False, "in the shared set", "`gate: true`", id="no NRI"),
    ],
)  # fmt: skip
def test_must_fit_check_has_the_remedy_of_the_runtime(
    runtime: str,
    holds: bool,
    is_guarded: bool,
    message: str,
    remedy: str,
) -> None:
    """The check names the component that refuses unfitting claims, or how to get a guard."""
    (checked,) = held_back_checks(runtime, holds=holds, is_guarded=is_guarded)

    assert (checked.subject, checked.verdict) == ("required CPUs", Verdict.OK)
    assert message in checked.message
    assert remedy in checked.remedy
    assert bool(checked.remedy) == bool(remedy)


def test_socket_and_folder_are_seen(tmp_path: Path) -> None:
    """A listening socket, a stale socket, an empty folder and no folder are distinguished."""
    folder = tmp_path / "nri"
    path = folder / "nri.sock"
    assert look_at(path) is Socket.NO_FOLDER
    folder.mkdir()
    assert look_at(path) is Socket.ABSENT
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert look_at(path) is Socket.ANSWERS
    assert look_at(path) is Socket.SILENT


def test_unreadable_folder_is_hidden(tmp_path: Path) -> None:
    """Without permission to read the folder the socket is HIDDEN."""
    tmp_path.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        assert look_at(tmp_path / "nri.sock") is Socket.HIDDEN
    finally:
        if is_root:
            os.seteuid(0)
        tmp_path.chmod(0o700)


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
