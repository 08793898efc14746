"""The CPUs of this node: online CPUs, offline ones seen before, and CPUs that pods may use (interface `Machine`)."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused
from agent.kernel.cgroup_names import pod_roots
from agent.kernel.cgroupfs import V1
from agent.kernel.sysfs import read_cpus, read_topology
from pinning.machine.cpuset import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from agent.interfaces import Cpusets
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology

logger = logging.getLogger(__name__)

NO_POD_ROOT: Final = "/"  # without a kubelet every CPU is usable
_MACHINE_IDS: Final = ("etc/machine-id", "var/lib/dbus/machine-id", "sys/class/dmi/id/product_uuid")


class NodeMachine:
    """The machine whose `/` is `root`, with the CPUs of the kubelet's pod root (the first existing one of `pod_roots`).

    `known` is the topology saved before a restart; it includes CPUs that may be offline now. `pod_cpus`, for cgroup v1,
    is the universe saved before a restart; the pod root has since lost those of its CPUs that went offline (see
    `universe`). `widen` adds missing CPUs to a cgroup and its ancestors, and raises Gone or Refused.
    """

    def __init__(
        self,
        root: Path,
        cpusets: Cpusets,
        *,
        widen: Callable[[str, CPUSet], None] | None = None,
        pod_roots: Iterable[str] = pod_roots(),
        known: Topology | None = None,
        pod_cpus: CPUSet = EMPTY,
    ) -> None:
        self._root = root
        self._online = root / "sys/devices/system/cpu/online"
        self._cpusets = cpusets
        self._widen = widen
        self._pod_roots = tuple(pod_roots)
        self._known = known
        self._read_at: CPUSet | None = None  # the online CPUs when `_known` was read
        self._pod_root = ""  # the pod root at the last reading; empty: none was found
        self._usable = EMPTY
        # Topology, pod root and its CPUs from which `_usable` was computed.
        self._usable_of: tuple[Topology, tuple[str, CPUSet]] | None = None
        self._lost = pod_cpus  # CPUs that the pod root lost when they went offline
        self._id = cache(partial(_read_id, root))

    def online(self) -> CPUSet:
        """Return the online CPUs; cheap enough to poll every second."""
        return read_cpus(self._online) or EMPTY

    def topology(self) -> Topology:
        """Return the topology, including offline CPUs seen before; sysfs is read again only after hotplug."""
        online = self.online()
        if self._known is None or online != self._read_at:
            now = self._usable_by_pods(read_topology(self._root))
            self._known = now.remembering(self._known) if self._known else now
            if now.online == online:  # otherwise CPUs are being hotplugged: read again at the next call
                self._read_at = online
        return self._known

    def _usable_by_pods(self, topology: Topology) -> Topology:
        """Return the topology without NUMA nodes whose memory the pod root may not use: no container starts there."""
        usable = EMPTY
        with suppress(Gone, Refused):
            usable = topology.memory_nodes & self._cpusets.mems(self.pod_root())
        return replace(topology, known_memory_nodes=usable) if usable else topology

    @property
    def cgroups(self) -> tuple[str, ...]:
        """The pod root that was found last, and its ancestors, which limit its CPUs; empty if none was found."""
        parts = self._pod_root.split("/")
        return (
            tuple("/".join(parts[:length]) for length in range(2, len(parts) + 1)) if self._pod_root else ()
        )

    def pod_root(self) -> str:
        """Return the cgroup above all pods; the root cgroup until the kubelet has created its own."""
        return self._read_pod_root()[0]

    def _read_pod_root(self) -> tuple[str, CPUSet]:
        """Return the pod root and its CPUs; search for it again only if none was found or it was removed."""
        for cgroup in (self._pod_root, *self._pod_roots) if self._pod_root else self._pod_roots:
            with suppress(Gone):
                cpus = self._cpusets.read(cgroup)
                self._pod_root = cgroup
                return cgroup, cpus
        self._pod_root = ""
        return NO_POD_ROOT, self._cpusets.read(NO_POD_ROOT)

    def universe(self, topology: Topology) -> CPUSet:
        """Return the online CPUs of a topology within the effective cpuset of the kubelet's pod root.

        On cgroup v1 a CPU that goes offline leaves every cpuset for good. This adds it to the pod root again when it is
        back; writing a container's cpuset widens the cgroups in between.
        """
        root = self._read_pod_root()
        if self._usable_of and self._usable_of[0] is topology and self._usable_of[1] == root:
            return self._usable  # nothing changed since the last poll
        online, (cgroup, had) = topology.online, root
        back = (self._lost & online) - had
        if back and self._widen and self._cpusets.version == V1 and cgroup != NO_POD_ROOT:
            had = self._give_back(self._widen, cgroup, back)
        self._lost = (self._lost | self._usable) - (online - (back - had))
        self._usable = had & online
        self._usable_of = None if back else (topology, root)  # retry CPUs missing in the pod root
        return self._usable

    def _give_back(self, widen: Callable[[str, CPUSet], None], cgroup: str, cpus: CPUSet) -> CPUSet:
        """Add CPUs to the pod root, and return all of its CPUs; if that is not permitted, the CPUs stay unused."""
        try:
            widen(cgroup, cpus)
        except (Gone, Refused) as error:
            facts = {"cpus": str(cpus), "reason": str(error)}
            logger.warning("CPUs stay out of the pod root", extra={"facts": facts})
        return self._cpusets.read(cgroup)

    def boot_id(self) -> str:
        """Return the id of this boot."""
        return self._id(("proc/sys/kernel/random/boot_id",))

    def machine_id(self) -> str:
        """Return the id of the host, so the host's /etc/machine-id must be mounted into the agent."""
        return self._id(_MACHINE_IDS)


def machine_id(root: Path) -> str:
    """Return the id of the machine whose `/` is `root`."""
    return _read_id(root, _MACHINE_IDS)


def _read_id(root: Path, names: tuple[str, ...]) -> str:
    """Return the first id found in these files; raise Refused naming them."""
    for name in names:
        with suppress(OSError):
            text = (root / name).read_text(encoding="ascii").strip()
            if text:
                return text
    files = " or ".join(str(root / name) for name in names)
    raise Refused(f"no id in {files}: mount the host's file into the agent")
