"""Pods of a real kubelet whose CPUs are ResourceClaims: the scheduler counts them, the agent is their driver."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from pinning.contract import DRA_CAPACITY, DRA_CPUSET_PREFIX
from pinning.machine.cpuset import CPUSet
from tests.environments.node.node import EXCLUSIVE, pod
from tests.environments.waiting import until, until_equal
from tests.node.starts.over_nri import agent_over_nri, lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Container, Node

CLASSES: Final = (
    Path("manifests/components/dra/class.yaml"),
    Path("manifests/components/dra-cpu-class/class.yaml"),
)
SOCKET: Final = "plugins_registry/cpu.corepin.io-reg.sock"
UPSTREAM: Final = {  # what KubeVirt's VEP 152 makes beside a launcher
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "vmi-1-cpu", "namespace": "default"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "cpu",
                    "exactly": {
                        "deviceClassName": "dra.cpu",
                        "capacity": {"requests": {DRA_CAPACITY: "1"}},
                    },
                }
            ]
        }
    },
}


@pytest.fixture(scope="module")
def dra_node(node_session: Node) -> Iterator[Node]:
    """Return the node with its agent as a driver, and our two classes."""
    if len(str(node_session.kubelet.directory / "root" / SOCKET)) > 107:
        pytest.skip("the kubelet's folder has too long a path for a socket: use a shorter --basetemp")
    with _classes(node_session), _driver(node_session):
        yield node_session


@pytest.fixture
def node(dra_node: Node) -> Iterator[Node]:
    """Return the node without pods and claims."""
    yield dra_node
    dra_node.clear()
    for claim in dra_node.get("resourceclaims")[
        "items"
    ]:  # no controller takes the protection of a used one away
        name = f"resourceclaim/{claim['metadata']['name']}"
        dra_node.kubectl("patch", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        dra_node.kubectl("delete", name, "--wait=false")
    until_equal("no claim is held", lambda: _held(dra_node), [])


@contextmanager
def _classes(node: Node) -> Iterator[None]:
    documents = [yaml.safe_load(path.read_text()) for path in CLASSES]
    node.apply(*documents)
    yield
    node.kubectl("delete", "deviceclasses", "--all")


@contextmanager
def _driver(node: Node) -> Iterator[None]:
    root = node.kubelet.directory / "root"
    with agent_over_nri(node, "--dra", "on", "--kubelet-root", str(root)):
        until("the slice is there", lambda: _slices(node))
        yield


def _slices(node: Node) -> list[Any]:
    found: list[Any] = node.get("resourceslices")["items"]
    return found


def _held(node: Node) -> list[Any]:
    found: list[Any] = node.agent.state()["ledger"].get("claims", [])
    return found


def _claim(name: str, device_class: str = "cpu.corepin.io") -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, "capacity": {"requests": {DRA_CAPACITY: "1"}}}
    requests = [{"name": "cpu", "exactly": exactly}]
    return {
        **UPSTREAM,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": requests}},
    }


def _pod(name: str, claim: str, cpu: str | None = None, **more: str) -> dict[str, Any]:
    document = pod(name, more, cpu=cpu)
    spec = document["spec"]
    spec["resourceClaims"] = [{"name": "cpu-dra", "resourceClaimName": claim}]
    resources = spec["containers"][0]["resources"]
    resources["claims"] = [{"name": "cpu-dra", "request": "cpu"}]
    again = {**spec["containers"][0], "name": "again", "command": ["/bin/sleep", "1000000"]}
    spec["containers"].append(again)  # on the same CPUs
    return document


def _uid(node: Node, claim: str) -> str:
    uid: str = node.get("resourceclaim", claim)["metadata"]["uid"]
    return uid


def _assert_own(node: Node, container: Container, name: str, claim: str) -> CPUSet:
    """Check first instruction, cpuset and variable of a container; return its CPUs."""
    own = CPUSet.parse(until("first line", lambda: lines(node, name))[0])
    node.settled({container: own})
    variable = f"{DRA_CPUSET_PREFIX}{_uid(node, claim)}="
    until_equal("the variable", lambda: _values(container.folder.parent, variable), {str(own)})
    return own


def _values(pod: Path, variable: str) -> set[str]:
    """Return the values of a variable in the processes of a pod; a shell passes none with dashes in its name on."""
    found = set()
    for file in pod.glob("*/cgroup.procs"):
        for pid in file.read_text().split():
            entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
            found |= {entry.removeprefix(variable) for entry in entries if entry.startswith(variable)}
    return found


@pytest.mark.parametrize(
    ("claim", "cpu"),
    [(_claim("plain"), None), (UPSTREAM, "1")],
    ids=["plain", "VEP 152 with its mirrored request"],
)
def test_container_runs_on_its_claim_from_the_first_instruction_on(
    node: Node, claim: dict[str, Any], cpu: str | None
) -> None:
    """Variable, cpuset and the CPUs of the first instruction are those of the claim, and no other pod has them."""
    name = claim["metadata"]["name"]
    node.apply(claim)
    [container] = node.run(_pod("user", name, cpu))
    [beside] = node.run(pod("beside"))
    own = _assert_own(node, container, "user", name)
    assert len(own) == 1
    node.settled({beside: node.all - own})
    until("its status", lambda: (node.status("user") or {}).get("cpus") == str(own))


def test_claim_waits_in_prepare_until_a_classic_pod_has_gone(node: Node) -> None:
    """A pod with a claim starts as soon as the classic pod that holds the last core is gone, without an event."""
    node.apply(_claim("late"))
    holder = pod("holder", EXCLUSIVE, cpu=str(node.cores))
    user = _pod("user", "late")
    node.apply({**user, "spec": {**user["spec"], "schedulingGates": [{"name": "test/wait"}]}})
    [classic] = node.run(holder)
    until_equal("it owns a core", lambda: len(classic.cpus), node.cores)
    node.kubectl(
        "patch", "pod", "user", "--type=json", "-p", '[{"op":"remove","path":"/spec/schedulingGates"}]'
    )
    node.remove("holder")
    _assert_own(node, node.running("user"), "user", "late")
