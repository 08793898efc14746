"""Configuration of one node's CPUs, validated once at start.

The caller parses YAML and passes a mapping of plain values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, TypeVar

from pinning.contract import (
    CoreType,
    DevicePolicy,
    NoiseKind,
    NUMAPolicy,
    ReserveSource,
    SMTPolicy,
    VMThreadsPolicy,
)
from pinning.errors import BadContract, BadCPUList
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.pods.claims import Origin
from pinning.pods.counted import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pinning.allocation.packed import Sort
    from pinning.machine.near import Device
    from pinning.pods.claims import Claim

Word = TypeVar("Word", bound=StrEnum)
DYNAMIC = "dynamic"
AUTO = "auto"
_NAMESPACES: Final = re.compile(r"[-a-z0-9*?\[\]!]{1,63}")  # name of a namespace, or a glob


class UncountedClaims(StrEnum):
    """The treatment of claims whose cores the scheduler does not count."""

    REPORT = "report"
    REFUSE = "refuse"  # new claims whose cores are not counted get no CPUs


class Irqbalance(StrEnum):
    """Whether irqbalance is asked to keep off quiet CPUs."""

    TELL = "tell"
    IGNORE = "ignore"  # irqbalance's own configuration bans quiet CPUs


class Quota(StrEnum):
    """The treatment of the CFS quota of an exclusive container."""

    AUTO = "auto"  # unset if the container owns no more CPUs than its limit
    KEEP = "keep"
    UNSET = "unset"


class ExecAffinity(StrEnum):
    """CPUs of processes that enter an exclusive container by exec."""

    NONE = "none"  # such processes stay on the container's CPUs
    LAST = "last"  # such processes run on the container's highest own CPU
    # Such processes run on the shared set if the container may use it, otherwise as with `last`.
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class StaticPools:
    """CMK's static pools; sizes are physical cores."""

    exclusive_cores: int = 0
    shared_cores: int = 0
    exclusive_non_isolcpus: CPUSet = EMPTY  # each CPU stands for its whole core
    exclusive_mode: Sort = "packed"
    shared_mode: Sort = "packed"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of one node's CPUs."""

    reserved: CPUSet | None = None  # None: `default_reserve` of `node_sets` chooses
    reserve_source: ReserveSource = ReserveSource.CONFIGURED  # where `reserved` comes from, if it is set
    # No container runs on reserved CPUs; None: as the kubelet is configured, else false.
    strict_reserved: bool | None = None
    system_namespaces: tuple[str, ...] = ()  # globs: their containers run on the reserved CPUs
    sort: Sort = "packed"
    distribute: bool = False
    # Give a claim CPUs of one last-level cache if possible; None: if `Topology.has_even_caches`.
    align_uncore: bool | None = None
    smt_policy: SMTPolicy = SMTPolicy.PREFER
    numa_policy: NUMAPolicy = NUMAPolicy.PACKED
    core_type: CoreType = CoreType.ANY
    device_policy: DevicePolicy = DevicePolicy.PREFER
    near_ignore: tuple[str, ...] = ()  # patterns of resources whose devices do not affect placement
    quota: Quota = Quota.AUTO
    vm_threads: VMThreadsPolicy = VMThreadsPolicy.UNION
    # None: `shared` for containers under `quiet` with shared CPUs, `none` for others.
    exec_affinity: ExecAffinity | None = None
    strict_threads: bool = False  # owners of exclusive cores never get pool CPUs, even through `cmk isolate`
    counted_claims: frozenset[SMTPolicy] = frozenset()  # policies whose whole cores the scheduler counts
    uncounted_claims: UncountedClaims = UncountedClaims.REPORT
    observe: bool = False
    pools: StaticPools | None = None  # None: every allocatable core can be exclusive
    # Limits per second; a kind without a limit is not reported.
    noise_limits: tuple[tuple[NoiseKind, float], ...] = ()
    quiet_interrupts: bool = False  # keep interrupts off the CPUs of containers under `quiet`
    quiet_workqueues: bool = False  # keep unbound workqueues off these CPUs
    quiet_latency: int | None = None  # longest wakeup latency of these CPUs in microseconds; None: unchanged
    # Send bans to irqbalance over its socket; False: the operator has configured them.
    manages_irqbalance: bool = True
    kubelet_binds_memory: bool = False  # found by the agent: the kubelet's Memory Manager policy is Static

    @property
    def keeps_quiet(self) -> bool:
        """Return whether any setting is changed for containers under `quiet`."""
        return self.quiet_interrupts or self.quiet_workqueues or self.quiet_latency is not None


DEFAULT = NodeConfig()
KEYS = (
    "reserved",
    "strictReserved",
    "systemNamespaces",
    "sort",
    "distribute",
    "alignUncore",
    "smtPolicy",
    "numaPolicy",
    "coreType",
    "devicePolicy",
    "nearIgnore",
    "quota",
    "vmThreads",
    "execAffinity",
    "strictThreads",
    "countedClaims",
    "uncountedClaims",
    "observe",
    "pools",
    "noise",
    "quiet",
)
QUIET_KEYS = ("interrupts", "workqueues", "irqbalance", "powerLatency")
OFF: Final = "off"
MOST_LATENCY: Final = 10**6  # microseconds; no idle state takes a second to leave
MOST_RATE: Final = 10**9  # highest noise limit per second
POOL_KEYS = ("exclusive_cores", "shared_cores", "exclusive_non_isolcpus", "exclusive_mode", "shared_mode")


def read_node_config(given: object) -> NodeConfig:
    """Return the configuration in a mapping, with defaults for absent keys; raise BadContract if it is invalid."""
    keys = _Keys.of(given, "", KEYS)
    quiet = _Keys.of({} if keys.value("quiet") is None else keys.value("quiet"), "quiet.", QUIET_KEYS)
    return NodeConfig(
        reserved=keys.cpus("reserved"),
        strict_reserved=keys.optional_flag("strictReserved"),
        system_namespaces=keys.namespaces("systemNamespaces"),
        sort=keys.sort("sort"),
        distribute=keys.flag("distribute"),
        align_uncore=keys.flag_or_auto("alignUncore"),
        smt_policy=keys.word("smtPolicy", SMTPolicy.PREFER),
        numa_policy=keys.word("numaPolicy", NUMAPolicy.PACKED),
        core_type=keys.word("coreType", CoreType.ANY),
        device_policy=keys.word("devicePolicy", DevicePolicy.PREFER),
        near_ignore=keys.patterns("nearIgnore"),
        quota=keys.word("quota", Quota.AUTO),
        vm_threads=keys.word("vmThreads", VMThreadsPolicy.UNION),
        exec_affinity=keys.word("execAffinity", ExecAffinity.NONE)
        if keys.value("execAffinity") is not None
        else None,
        strict_threads=keys.flag("strictThreads"),
        counted_claims=keys.counted("countedClaims"),
        uncounted_claims=keys.word("uncountedClaims", UncountedClaims.REPORT),
        observe=keys.flag("observe"),
        pools=_read_pools(keys.value("pools")),
        noise_limits=_read_noise(keys.value("noise")),
        quiet_interrupts=quiet.flag("interrupts"),
        quiet_workqueues=quiet.flag("workqueues"),
        quiet_latency=quiet.latency("powerLatency"),
        manages_irqbalance=quiet.word("irqbalance", Irqbalance.TELL) is Irqbalance.TELL,
    )


def _read_noise(given: object) -> tuple[tuple[NoiseKind, float], ...]:
    if given is None:
        return ()
    keys = _Keys.of(given, "noise.", tuple(NoiseKind))
    return tuple((kind, keys.rate(kind)) for kind in NoiseKind if keys.value(kind) is not None)


def device_policy_of(claim: Claim, config: NodeConfig) -> DevicePolicy:
    """Return the device policy of a claim, with the node's default filled in."""
    if claim.origin is Origin.DRA:  # the scheduler chose its NUMA node
        return DevicePolicy.NONE
    return claim.devices or config.device_policy


def is_placed_beside(claim: Claim, config: NodeConfig) -> bool:
    """Return whether a container is placed near its devices."""
    return device_policy_of(claim, config) is not DevicePolicy.NONE


def near_devices(devices: Iterable[Device], claim: Claim, config: NodeConfig) -> tuple[Device, ...]:
    """Return the devices near which a container is placed."""
    if not is_placed_beside(claim, config):
        return ()
    return tuple(
        device
        for device in devices
        if not any(fnmatchcase(device.resource, pattern) for pattern in config.near_ignore)
    )


def exec_cpus(affinity: ExecAffinity, own: CPUSet, others: CPUSet) -> CPUSet:
    """Return the CPUs for processes that enter a container by exec, given its own CPUs and its pools.

    The result is empty if they stay on the container's CPUs.
    """
    if affinity is ExecAffinity.NONE:
        return EMPTY
    if affinity is ExecAffinity.SHARED and others - own:
        return others - own
    return CPUSet([max(own)]) if own else EMPTY


def _read_pools(given: object) -> StaticPools | None:
    if given is None or given == DYNAMIC:
        return None
    keys = _Keys.of(given, "pools.", POOL_KEYS)
    pools = StaticPools(
        exclusive_cores=keys.count("exclusive_cores"),
        shared_cores=keys.count("shared_cores"),
        exclusive_non_isolcpus=keys.cpus("exclusive_non_isolcpus") or EMPTY,
        exclusive_mode=keys.sort("exclusive_mode"),
        shared_mode=keys.sort("shared_mode"),
    )
    if not pools.exclusive_cores and not pools.exclusive_non_isolcpus:
        raise BadContract(
            f"pools: {given} leaves no core that could be exclusive:"
            f" give exclusive_cores a number of 1 or more, or write pools: {DYNAMIC}"
        )
    return pools


@dataclass(frozen=True, slots=True)
class _Keys:
    """One mapping of the configuration, and its path in messages."""

    given: Mapping[object, object]
    prefix: str

    @classmethod
    def of(cls, given: object, prefix: str, known: tuple[str, ...]) -> _Keys:
        """Check that all keys of a mapping are known; raise BadContract otherwise."""
        if not isinstance(given, dict):
            name = prefix.rstrip(".") or "the node configuration"
            also = f", or the word {DYNAMIC}" if prefix == "pools." else ""
            raise BadContract(f"{name}: {given!r} is not a mapping: write keys of {', '.join(known)}{also}")
        for key in given:
            if key not in known:
                from difflib import get_close_matches  # only for this error, because it takes 0.1 MB

                close = get_close_matches(str(key), known, n=1)
                remedy = f"did you mean {close[0]}?" if close else f"known keys are {', '.join(known)}"
                raise BadContract(f"{prefix}{key}: the key is unknown (value {given[key]!r}): {remedy}")
        return cls(given, prefix)

    def value(self, key: str) -> object:
        """Return the value of a key; None if the key is absent or null."""
        return self.given.get(key)

    def bad(self, key: str, expected: str) -> BadContract:
        """Return the error for an invalid value."""
        return BadContract(f"{self.prefix}{key}: {self.value(key)!r} is not allowed: write {expected}")

    def word(self, key: str, default: Word) -> Word:
        """Return the value of a key as a member of the enumeration of its default."""
        value = self.value(key)
        if value is None:
            return default
        words = type(default)
        if not isinstance(value, str) or value not in set(words):
            raise self.bad(key, " or ".join(words))
        return words(value)

    def sort(self, key: str) -> Sort:
        """Return packed or spread; packed when absent."""
        value = self.value(key)
        if value not in (None, "packed", "spread"):
            raise self.bad(key, "packed or spread")
        return "spread" if value == "spread" else "packed"

    def flag(self, key: str) -> bool:
        """Return the boolean of a key; False if the key is absent."""
        return bool(self.optional_flag(key))

    def optional_flag(self, key: str) -> bool | None:
        """Return the boolean of a key; None if the key is absent."""
        value = self.value(key)
        if value is not None and not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def flag_or_auto(self, key: str) -> bool | None:
        """Return a boolean, None for `auto` and when absent."""
        value = self.value(key)
        if value in (None, AUTO):
            return None
        if not isinstance(value, bool):
            raise self.bad(key, f"{AUTO}, true or false")
        return value

    def count(self, key: str) -> int:
        """Return a number of cores, 0 when absent."""
        value = self.value(key)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.bad(key, "a whole number of cores, 0 or more")
        return value

    def latency(self, key: str) -> int | None:
        """Return microseconds; None for `off`, which YAML may read as false, and when absent."""
        value = self.value(key)
        if value is None or value is False or value == OFF:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_LATENCY:
            raise self.bad(key, f"{OFF}, or microseconds from 1 to {MOST_LATENCY}")
        return value

    def rate(self, key: str) -> float:
        """Return the noise limit of a key, a number per second."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_RATE:
            raise self.bad(key, f"a number per second from 0 to {MOST_RATE}")
        return float(value)

    def counted(self, key: str) -> frozenset[SMTPolicy]:
        """Return the SMT policies whose claims the scheduler counts, none when absent."""
        value = self.value(key)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or not all(it in list(RESOURCES) for it in value):
            raise self.bad(key, f"a list of {' and '.join(RESOURCES)}, which may be empty")
        return frozenset(map(SMTPolicy, value))

    def namespaces(self, key: str) -> tuple[str, ...]:
        """Return names or globs of namespaces, none when absent."""
        value = self.value(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            isinstance(it, str) and _NAMESPACES.fullmatch(it) for it in value
        ):
            raise self.bad(key, 'a list of namespaces, by names or globs such as "kube-*"')
        return tuple(value)

    def patterns(self, key: str) -> tuple[str, ...]:
        """Return patterns of resource names, none when absent."""
        value = self.value(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(it, str) and it for it in value):
            raise self.bad(key, 'a list of patterns such as "*/kvm", which may be empty')
        return tuple(value)

    def cpus(self, key: str) -> CPUSet | None:
        """Return a CPU list; a single CPU arrives as a number, because YAML reads it so."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise self.bad(key, 'a CPU list such as "0-1,8"')
        try:
            return CPUSet.parse(str(value))
        except BadCPUList as problem:
            raise BadContract(f'{self.prefix}{key}: {problem}; write a CPU list such as "0-1,8"') from problem
