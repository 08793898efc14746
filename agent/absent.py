"""Null objects for the interfaces whose implementation a node may lack; each class names the case that it is for."""

from __future__ import annotations

from contextlib import nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.errors import Gone
from agent.interfaces import HeldCPUs
from agent.node_state import Path, StartWay
from pinning.contract import DevicePolicy
from pinning.planning.node_config import DEFAULT, device_policy_of
from pinning.planning.observed import DeviceTimes, Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AbstractContextManager

    from agent.interfaces import NewContainer, PassedContainer, RuntimeContainer
    from agent.node_state import LastUpdate, NodeState
    from agent.vm_interfaces import BootScope, ConfinedBoot, VMPinned, VMPlace
    from pinning.contract import PoolUse
    from pinning.guests.masks import VMMasks, VMSeen
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.near import Device
    from pinning.planning.ledger import Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.observed import Observed, SeenPod
    from pinning.planning.quota import Bandwidth
    from pinning.planning.start_table import StartTable


NO_KUBELET: Final = f"no kubelet reports devices to this agent: set device-policy to {DevicePolicy.PREFER}"


class NoOwners:
    """The owner of a container is not known before the runtime lists it (interface `Owners`)."""

    def known(self, container_id: str) -> Owner | None:
        """Return None, because nothing is known."""
        return None

    async def owner(self, container_id: str) -> Owner:
        """Raise Gone."""
        raise Gone(f"{container_id} is not known")

    async def created(self, _container_ids: Collection[str]) -> Mapping[str, Owner | None]:
        """Return no owners."""
        return {}


class NoContainerWatch:
    """The agent itself creates every container (interface `ContainerWatch`)."""

    start_way = StartWay(Path.RUNTIME)
    owners = NoOwners()
    puts_home = False

    def publish(self, table: StartTable | None) -> None:
        """Ignore the start table."""

    def started(self, container_id: str) -> CPUSet | None:
        """Return None, because this watch starts no containers."""
        return None

    def last_update(self, container_id: str) -> LastUpdate | None:
        """Return None, because no runtime asks the agent about updates."""
        return None

    def follow(self, cgroups: Iterable[str]) -> None:
        """Watch nothing."""

    async def watch(self, created: Callable[[NewContainer], None], changed: Callable[[], None]) -> None:
        """Return at once."""


class NoCpusetWatch:
    """No other process writes cpusets (interface `CpusetWatch`)."""

    def expect(self, cgroup: str, cpus: CPUSet) -> None:
        """Expect nothing."""

    def follow(self, cgroups: Iterable[str], *, anew: bool = True) -> None:
        """Watch nothing."""

    async def watch(self, written: Callable[[str], None]) -> None:
        """Return at once."""

    def paused(self) -> AbstractContextManager[None]:
        """Return a context without effect."""
        return nullcontext()


class NoQuotas:
    """No cgroup has a quota (interface `Quotas`)."""

    def quota(self, cgroup: str) -> Bandwidth | None:
        """Raise Gone."""
        raise Gone(f"{cgroup}: no cgroup has a quota here")

    def set_quota(self, cgroup: str, bandwidth: Bandwidth) -> None:
        """Set nothing."""

    def unset_quota(self, cgroup: str) -> None:
        """Unset nothing."""

    def times_throttled(self, cgroup: str) -> int:
        """Raise Gone."""
        raise Gone(f"{cgroup}: no cgroup has a quota here")


class NoVirtualMachines:
    """No virtual machine is found, and threads are left alone (interface `VirtualMachines`)."""

    def kind(self, place: VMPlace) -> str:
        """Return an empty text, because no VMM runs."""
        return ""

    def count(self, place: VMPlace) -> int:
        """Return 0, because no VMM runs."""
        return 0

    def has_strayed(self, place: VMPlace) -> bool:
        """Return False."""
        return False

    def read(self, place: VMPlace, *, fully: bool = False) -> VMSeen | None:
        """Find no machine."""
        return None

    def pin(self, place: VMPlace, masks: VMMasks) -> VMPinned | None:
        """Find no machine."""
        return None

    def tasks(self, place: VMPlace) -> frozenset[int]:
        """Return no thread ids."""
        return frozenset()

    def keep(self, places: Collection[VMPlace]) -> None:
        """Forget nothing."""


class NoBootingMachines:
    """No machine that boots is found (interface `BootingMachines`)."""

    def confine(self, scope: BootScope, cpus: CPUSet) -> tuple[ConfinedBoot, ...]:
        """Move no machine."""
        return ()


class NoObservedCPUs:
    """No kubelet reports CPUs here, so a container's CPUs are those of its cpuset (interface `ObservedCPUs`)."""

    async def read(self, containers: Iterable[tuple[RuntimeContainer, CPUSet]]) -> Mapping[Owner, HeldCPUs]:
        """Return the cpuset of each container that has one."""
        return {Owner(it.pod_uid, it.name): HeldCPUs(cpus, None) for it, cpus in containers if cpus}


class NoWrappers:
    """The socket of `cmk isolate` is not served (interface `Wrappers`)."""

    def uses(self) -> Mapping[Owner, frozenset[PoolUse]]:
        """Return no pool users."""
        return {}

    def passed(self, state: NodeState, containers: Iterable[PassedContainer]) -> None:
        """Ignore the result of a pass."""

    def shown(self, state: NodeState) -> NodeState:
        """Return the state unchanged."""
        return state

    def reset(self) -> None:
        """Drop nothing."""

    def look(self) -> None:
        """Check nothing; return None, because no further check is due."""

    async def run(self, request_pass: Callable[[], None], changed: Callable[[], None]) -> None:
        """Return at once."""


class NoDevices:
    """No kubelet gives devices to containers (interface `Devices`)."""

    looks_up_claims = False
    times: Mapping[str, DeviceTimes] = MappingProxyType({})

    def __init__(self, config: NodeConfig = DEFAULT) -> None:
        self._config = config
        self._unknown: Mapping[Owner, str] = {}

    def known(self) -> Mapping[Owner, tuple[Device, ...]]:
        """Return no devices."""
        return {}

    def unknown(self) -> Mapping[Owner, str]:
        """Return the containers that require CPUs near devices, with the reason why their devices are not known."""
        return self._unknown

    def free(self) -> None:
        """Return None, because nothing is known."""

    def resume(self, known: Mapping[Owner, tuple[Device, ...]]) -> None:
        """Ignore the devices of a checkpoint."""

    def follow(self, observed: Observed, names: Mapping[str, tuple[str, str]]) -> None:
        """Record the containers that require CPUs near devices, because no kubelet will report their devices."""
        self._unknown = {
            Owner(pod.uid, container): NO_KUBELET
            for pod in observed.pods
            if any(device_policy_of(claim, self._config) is DevicePolicy.REQUIRE for claim in pod.all_claims)
            for container in pod.device_containers
        }

    def sandbox_started(self, uid: str) -> None:
        """Ignore the start of a sandbox."""

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Return at once."""


class NoDeviceClaims:
    """The agent is not a driver of Dynamic Resource Allocation (interface `DeviceClaims`)."""

    def seen(self, pods: Iterable[SeenPod], live: Collection[str]) -> None:
        """Return None, because there are no claims."""

    def passed(self, ledger: Ledger, waiting: Mapping[str, str], *, observes: bool) -> None:
        """Ignore the ledger."""

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Return at once."""
