"""State of the simulated machine, with the kernel's and the runtime's rules for cpusets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import State

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinning.machine.topology import Topology

from tests.environments.process.tree import write_tree

FAIL, LOSE = "fail", "lose"  # kinds of faults: an error as answer; success as answer, without effect


class Wrong(Exception):
    """An error of the machine; its first word is the kind: gone, refused, unavailable, invalid."""


@dataclass(frozen=True)
class Held:
    """One container: `written` is its cpuset.cpus, `recorded` the runtime's own record."""

    id: str
    pod_uid: str
    namespace: str
    pod: str
    name: str
    state: State
    written: CPUSet
    recorded: CPUSet
    in_vm: bool = False

    @property
    def cgroup(self) -> str:
        """Its cgroup, below the mount."""
        return f"/kubepods/pod{self.pod_uid}/{self.id}"


@dataclass
class Simulated:
    """The machine. Every method is one operation of the protocol, with plain JSON values in and out."""

    root: Path
    topology: Topology
    containers: dict[str, Held] = field(default_factory=dict)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)  # remaining faults of each operation
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        write_tree(self.root, self.topology)

    def create(self, id: str, pod_uid: str, name: str, **more: Any) -> None:  # noqa: A002
        """Create a container on all CPUs; its state is created."""
        if id in self.containers:
            raise Wrong(f"refused: container {id} exists")
        cpus = self.topology.online
        container = Held(
            id=id,
            pod_uid=pod_uid,
            namespace=more.get("namespace", "default"),
            pod=more.get("pod", pod_uid),
            name=name,
            state=State.CREATED,
            written=cpus,
            recorded=cpus,
            in_vm=more.get("in_vm", False),
        )
        self._put("create", container)

    def start(self, id: str) -> str:  # noqa: A002
        """Start a created container; return the CPUs of its first instruction."""
        container = self._of(id)
        if container.state is not State.CREATED:
            raise Wrong(f"refused: container {id} is {container.state}")
        self._put("start", replace(container, state=State.RUNNING))
        return str(self._effective(container))

    def stop(self, id: str) -> None:  # noqa: A002
        """End a container; its cgroup is removed."""
        self._put("stop", replace(self._of(id), state=State.EXITED))

    def remove(self, id: str) -> None:  # noqa: A002
        """Forget a container."""
        self._note("remove", self._of(id))
        del self.containers[id]

    def listed(self) -> list[dict[str, Any]]:
        """Return every container, as the runtime lists it."""
        self._maybe_fail("list")
        return [
            {
                "id": container.id,
                "pod_uid": container.pod_uid,
                "namespace": container.namespace,
                "pod": container.pod,
                "name": container.name,
                "state": str(container.state),
                "in_vm": container.in_vm,
                "cgroup": container.cgroup,
                "recorded": str(container.recorded),
            }
            for container in self.containers.values()
        ]

    def update(self, id: str, cpus: str) -> None:  # noqa: A002
        """Do the runtime's UpdateContainerResources: an empty set changes nothing, an offline CPU is refused."""
        container, wanted = self._of(id), CPUSet.parse(cpus)
        if container.state is State.EXITED:
            raise Wrong(f"gone: container {id} has exited")
        if not wanted <= self.topology.online:
            raise Wrong(
                f"refused: requested CPUs are not available - requested {wanted}, available {self.topology.online}"
            )
        if wanted and not self._goes_wrong("update"):
            self._put("update", replace(container, written=wanted, recorded=wanted))

    def read(self, cgroup: str) -> str:
        """Return the effective CPUs of a cgroup."""
        self._maybe_fail("read")
        return str(self._effective(self._at(cgroup)))

    def write(self, cgroup: str, cpus: str) -> None:
        """Write cpuset.cpus of a cgroup, bypassing the runtime."""
        container, wanted = self._at(cgroup), CPUSet.parse(cpus)
        if not wanted or not wanted <= self.topology.cpus:
            raise Wrong(f"invalid: cpuset.cpus cannot be {cpus!r}")
        if not self._goes_wrong("write"):
            self._put("write", replace(container, written=wanted))

    def online(self, cpus: str) -> None:
        """Set the online CPUs."""
        wanted = CPUSet.parse(cpus)
        if not wanted or not wanted <= self.topology.cpus:
            raise Wrong(f"invalid: CPUs {cpus!r} cannot be the online ones of {self.topology.cpus}")
        self.topology = self.topology.with_online(wanted)
        write_tree(self.root, self.topology)
        for container in self.containers.values():
            self._note("online", container)

    def fault(self, of: str, kind: str, times: int = 1) -> None:
        """Make the next calls of an operation fail, or succeed without effect."""
        if of not in {"list", "read", "update", "write"} or kind not in {FAIL, LOSE} or times < 0:
            raise Wrong(f"invalid: no fault {kind!r} x {times} of {of!r}")
        self.faults[of, kind] = times

    def events(self, since: int = 0) -> list[dict[str, Any]]:
        """Return the changes of containers, in order: the CPUs in force after each."""
        return self.history[since:]

    def _of(self, id: str) -> Held:  # noqa: A002
        if id not in self.containers:
            raise Wrong(f"gone: there is no container {id}")
        return self.containers[id]

    def _at(self, cgroup: str) -> Held:
        for container in self.containers.values():
            if container.cgroup == cgroup and container.state is not State.EXITED:
                return container
        raise Wrong(f"gone: there is no cgroup {cgroup}")

    def _effective(self, container: Held) -> CPUSet:
        """Return the effective CPUs: all CPUs if none of a cpuset is online (cgroup v2)."""
        return (container.written & self.topology.online) or self.topology.online

    def _put(self, op: str, container: Held) -> None:
        self.containers[container.id] = container
        self._note(op, container)

    def _note(self, op: str, container: Held) -> None:
        self.history.append(
            {
                "op": op,
                "id": container.id,
                "pod_uid": container.pod_uid,
                "name": container.name,
                "state": str(container.state),
            }
            | {"cpus": str(self._effective(container))}
        )

    def _goes_wrong(self, op: str) -> bool:
        """Return whether a call is lost; raise if it fails."""
        self._maybe_fail(op)
        return self._takes(op, LOSE)

    def _maybe_fail(self, op: str) -> None:
        if self._takes(op, FAIL):
            raise Wrong(f"unavailable: {op} fails as it was told to")

    def _takes(self, op: str, kind: str) -> bool:
        due = self.faults[op, kind] > 0
        self.faults[op, kind] -= due
        return due


def operations(machine: Simulated) -> dict[str, Callable[..., Any]]:
    """Return the operations of the protocol."""
    names = ["create", "start", "stop", "remove", "update", "read", "write", "online", "fault", "events"]
    return {"list": machine.listed, **{name: getattr(machine, name) for name in names}}
