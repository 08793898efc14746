"""The facts for the checks, read from the agent's state and from this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path as File
from typing import TYPE_CHECKING

import pytest

from agent.doctor.check import Verdict
from agent.doctor.checks import examine
from agent.doctor.facts import Places, agent_facts, read_facts
from agent.doctor.nri import NOT_WANTED, AgentNRI, Socket
from agent.doctor.programs import pods_of_verb
from agent.node_state import MemoryKill, Path, PodState
from agent.serve.state_json import agent_state
from pinning.contract import KubeletPolicy
from pinning.dra.claims import ClaimGrant
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import NodeConfig, StaticPools
from tests.agent.states import EXCLUSIVE, ISOLATE, bound, state_of
from tests.environments.waiting import until
from tests.pinning.dra.claiming import claim
from tests.pods import container

if TYPE_CHECKING:
    from agent.doctor.check import Check
    from tests.environments.node.containerd import Containerd


def test_exclusive_cpus_and_refusals_are_read_from_the_state() -> None:
    """Exclusive CPUs include idle siblings, and refusals have the container's name."""
    share = {"cpu-manager.corepin.io/pod": "share"}
    isolated = bound("a", container("main", 1), annotations=ISOLATE)
    shared = bound("b", container("main", 1), annotations=share)
    facts = agent_facts(
        agent_state(state_of(isolated, shared, bound("c", container("main", 99), annotations=EXCLUSIVE)))
    )

    assert facts.nri == NOT_WANTED
    assert len(facts.exclusive) == 2
    assert [refusal.partition(":")[0] for refusal in facts.refusals] == ["default/c/main"]


def test_shared_set_of_static_pools_is_read_from_the_state() -> None:
    """The shared set of static pools is None on a node without them."""
    state = agent_state(state_of(config=NodeConfig(pools=StaticPools(exclusive_cores=2, shared_cores=1))))
    assert agent_facts(state).static_shared == CPUSet.parse("0,4")
    assert agent_facts(agent_state(state_of())).static_shared is None


def test_requests_of_system_namespaces_are_read_from_the_state() -> None:
    """Requests of the configured namespaces, or kube-system, without claims and ended pods are summed."""
    pods = []
    for name, namespace in (("a", "kube-system"), ("b", "monitoring-1"), ("c", "test")):
        pod = bound(name, container("main", 2), container("side", requests="500m"), annotations=EXCLUSIVE)
        pod["metadata"]["namespace"] = namespace  # type: ignore[index]
        pods.append(pod)
    for namespaces, requested in (((), 500), (("kube-*", "monitoring-?"), 1000), (("none",), 0)):
        state = agent_state(state_of(*pods, config=NodeConfig(system_namespaces=namespaces)))
        facts = agent_facts(state)
        assert (facts.system_namespaces, facts.system_millicores) == (namespaces, requested)


def test_strict_reserved_is_read_from_the_state() -> None:
    """With static pools it is false, because no claim takes CPUs of the shared set."""
    strict = NodeConfig(strict_reserved=True)
    assert agent_facts(agent_state(state_of(config=strict))).is_strict
    assert not agent_facts(agent_state(state_of())).is_strict
    pools = replace(strict, pools=StaticPools(exclusive_cores=2))
    assert not agent_facts(agent_state(state_of(config=pools))).is_strict


def test_cpus_of_claims_are_read_from_the_ledger() -> None:
    """CPUs of a claim are read from the ledger, also if no container uses them."""
    ledger = Ledger().grant(ClaimGrant(claim("x", 2), (CPUSet.parse("1,5"),)))
    assert agent_facts(agent_state(replace(state_of(), ledger=ledger))).claimed == CPUSet.parse("1,5")


def test_runtime_reason_and_memory_kills_are_read_from_the_state() -> None:
    """The facts have the reason of a missing list, and our containers that were killed for memory."""
    kill = MemoryKill("u", "corepin-agent-x", "agent", "2026-11-23T10:00:00Z")
    facts = agent_facts(agent_state(replace(state_of(), runtime_reason="exceeds 16 MiB", kills=(kill,))))
    assert facts.runtime_reason == "exceeds 16 MiB"
    assert facts.memory_kills == ("corepin-agent-x/agent: 2026-11-23T10:00:00Z",)


def test_nri_is_read_from_the_state() -> None:
    """The facts say whether NRI holds, why not, and which other plugins there are."""
    held = replace(state_of(), start_path=Path.NRI, other_plugins=("10-a",))
    lost = replace(state_of(), start_reason="it is gone")

    assert agent_facts(agent_state(held)).nri == AgentNRI(holds=True)
    assert agent_facts(agent_state(held)).other_plugins == ("10-a",)
    assert agent_facts(agent_state(lost)).nri == AgentNRI(reason="it is gone")


@pytest.mark.parametrize(
    ("command", "guards"),
    [
        pytest.param("/usr/bin/python3\0/usr/local/bin/corepin\0guard\0--exempt\0a\0", True, id="guard"),
        pytest.param("/opt/corepin/bin/corepin\0guard\0", True, id="without an interpreter"),
        pytest.param("/usr/bin/python3\0/usr/local/bin/corepin\0agent\0", False, id="agent"),
        pytest.param("/usr/bin/kubectl\0exec\0x\0/opt/bin/corepin\0guard\0", False, id="kubectl"),
        pytest.param("grep\0-r\0/opt/corepin\0guard\0", False, id="words of another program"),
        pytest.param("guard\0", False, id="another program"),
        pytest.param("", False, id="a thread of the kernel"),
    ],
)
def test_guard_is_found_by_its_command(tmp_path: File, command: str, guards: bool) -> None:
    """A guard is found among processes; other programs, and processes that end during the read, are not."""
    for number, line in (("7", command), ("8", None)):
        (tmp_path / number).mkdir()
        if line is not None:
            (tmp_path / number / "cmdline").write_text(line)
            (tmp_path / number / "cgroup").write_text("0::/system.slice/x.service\n")

    assert list(pods_of_verb(tmp_path, "guard")) == [None] * guards


@pytest.mark.parametrize(
    ("namespace", "guards"),
    [
        pytest.param("corepin-agent", True, id="of corepin"),
        pytest.param("shop", False, id="of a tenant, who may choose any command line"),
        pytest.param(None, False, id="that the agent does not know"),
    ],
)
def test_guard_in_a_pod_counts_in_corepins_namespace_alone(
    tmp_path: File, namespace: str | None, *, guards: bool
) -> None:
    """A guard in a pod counts only in corepin's namespace, which the API server reports for the cgroup's pod."""
    uid = "11111111-2222-3333-4444-555555555555"
    process = tmp_path / "proc/7"
    process.mkdir(parents=True)
    (process / "cmdline").write_text("/opt/corepin/bin/python\0/opt/corepin/bin/corepin\0guard\0")
    (process / "cgroup").write_text(
        f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-1.scope\n"
    )
    pods = (PodState(uid, namespace, "corepin-guard-x", ()),) if namespace else ()
    state = agent_state(replace(state_of(), pods=pods))
    assert read_facts(Places(tmp_path, tmp_path, nri=tmp_path / "s"), state, 0).is_guarded is guards


def test_facts_of_this_machine(tmp_path: File) -> None:
    """On a machine without Kubernetes facts are read, and each missing one has a reason."""
    places = Places(
        tmp_path,
        tmp_path,
        kubelet_state=tmp_path / "none",
        runtime=tmp_path / "no.sock",
        nri=tmp_path / "no.sock",
    )
    facts = read_facts(places, None, 0)

    assert (facts.agent, facts.topology, facts.runtime, facts.cgroup_version) == (None, None, None, None)
    assert facts.kubelet is KubeletPolicy.UNKNOWN
    assert (facts.pod_root, facts.nri) == (None, Socket.ABSENT)
    assert facts.missing
    assert facts.missing.keys() == {"topology", "runtime", "cgroup_version"}


def test_real_runtimes_have_name_and_nri_remedy(containerd: Containerd, tmp_path: File) -> None:
    """The runtime's version is in the check, and the remedy for NRI fits the version."""
    places = Places(runtime=containerd.socket, nri=tmp_path / "no.sock")

    def answered() -> dict[str, Check] | None:  # within the doctor's three seconds
        found = {check.subject: check for check in examine(read_facts(places, None, 0))}
        return found if found["runtime"].verdict is not Verdict.UNKNOWN else None

    checks = until("the runtime answers the doctor", answered)
    is_old = containerd.programs.version == "1.6"

    assert checks["runtime"].message.startswith(f"containerd {containerd.programs.version}")
    assert checks["NRI"].remedy.startswith(
        "it came with containerd 1.7" if is_old else "containerd enables it by default"
    )
