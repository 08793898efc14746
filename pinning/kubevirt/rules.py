"""KubeVirt's rules about the CPUs and memory of a VMI, one function each.

Numbers in the docstrings are those of KubeVirt's checks in the order of its admitter; fields and reasons are
KubeVirt's, messages are corepin's. A rule depends on one spec only and does not repeat what another rule reports.
Left out: 13 (a feature gate that is always on), 26 and 27 (KubeVirt's mutator sets `vmx` itself) and 28 (it depends
on the names of GPUs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from pinning.contract import IOThreadsPolicy
from pinning.errors import BadContract, Cause
from pinning.kubevirt.defaults import ARM64
from pinning.kubevirt.realtime import RealtimeMask
from pinning.kubevirt.view import CPU_AMOUNTS, NOT_SUPPORTED, REQUIRED, Amount, find, shortened

if TYPE_CHECKING:
    from pinning.kubevirt.view import VMIView

Rule = Callable[["VMIView"], Iterator[Cause]]

MIN_MEMORY: Final = 10**6
FEATURE_POLICIES: Final = ("force", "require", "optional", "disable", "forbid")
ARCHITECTURES: Final = ("amd64", ARM64, "s390x")


def memory_request_is_sensible(vmi: VMIView) -> Iterator[Cause]:
    """Refuse a negative memory request, and one below 1M."""
    memory = vmi.request("memory")
    if memory.value < 0 or 0 < memory.value < MIN_MEMORY:
        message = f"requests.memory is {memory.text}; it must be at least 1M: set for example 1Gi"
        yield vmi.cause("resources.requests.memory", message)


def memory_limit_is_not_negative(vmi: VMIView) -> Iterator[Cause]:
    """Refuse a negative memory limit."""
    memory = vmi.limit("memory")
    if memory.value < 0:
        yield vmi.cause("resources.limits.memory", _negative("limits.memory", memory))


def memory_request_is_within_limit(vmi: VMIView) -> Iterator[Cause]:
    """Refuse a memory request above its limit."""
    request, limit = vmi.request("memory"), vmi.limit("memory")
    if 0 < limit.value < request.value:
        yield vmi.cause("resources.requests.memory", _exceeds("memory", request, limit))


def hugepages_divide_memory(vmi: VMIView) -> Iterator[Cause]:
    """Refuse memory that is not a positive multiple of the page size."""
    page = Amount.of((vmi.memory.get("hugepages") or {}).get("pageSize"))
    request = vmi.request("memory")
    name, memory = (
        ("requests.memory", request)
        if request.value
        else ("memory.guest", Amount.of(vmi.memory.get("guest")))
    )
    if page.value and memory.text != "not set" and (memory.value < page.value or memory.value % page.value):
        message = (
            f"{name} is {memory.text}, which is not a multiple of the huge page size {page.text}: set one"
        )
        yield vmi.cause("resources.requests.memory", message)


def guest_memory_is_within_limit(vmi: VMIView) -> Iterator[Cause]:
    """Refuse guest memory above the limit; with LiveUpdate KubeVirt ensures that itself."""
    guest, limit = Amount.of(vmi.memory.get("guest")), vmi.limit("memory")
    if not vmi.settings.live_update and 0 != limit.value < guest.value:
        message = (
            f"memory.guest is {guest.text}, greater than limits.memory {limit.text}:"
            " lower the first or raise the second"
        )
        yield vmi.cause("memory.guest", message)


def cpu_request_is_not_negative(vmi: VMIView) -> Iterator[Cause]:
    """1: refuse a negative CPU request."""
    if vmi.request("cpu").milli < 0:
        yield vmi.cause("resources.requests.cpu", _negative("requests.cpu", vmi.request("cpu")))


def cpu_limit_is_not_negative(vmi: VMIView) -> Iterator[Cause]:
    """2: refuse a negative CPU limit."""
    if vmi.limit("cpu").milli < 0:
        yield vmi.cause("resources.limits.cpu", _negative("limits.cpu", vmi.limit("cpu")))


def cpu_request_is_within_limit(vmi: VMIView) -> Iterator[Cause]:
    """3: refuse a CPU request above its limit."""
    request, limit = vmi.request("cpu"), vmi.limit("cpu")
    if 0 < limit.milli < request.milli:
        yield vmi.cause("resources.requests.cpu", _exceeds("cpu", request, limit))


def dedicated_has_memory(vmi: VMIView) -> Iterator[Cause]:
    """4: refuse dedicated CPUs without any memory size."""
    amounts = (vmi.limit("memory"), vmi.request("memory"), Amount.of(vmi.memory.get("guest")))
    if vmi.is_dedicated and not vmi.has_hugepages and not any(amount.value for amount in amounts):
        message = (
            "no memory size is given and dedicatedCpuPlacement needs one: set memory.guest, for example 1Gi"
        )
        yield vmi.cause("resources.limits.memory", message)


def dedicated_request_is_whole(vmi: VMIView) -> Iterator[Cause]:
    """5: refuse a fraction of a CPU as the request of dedicated CPUs."""
    request = vmi.request("cpu")
    if vmi.is_dedicated and request.value > 0 and not request.is_whole:
        yield vmi.cause("resources.requests.cpu", _fraction("requests.cpu", request))


def dedicated_limit_is_whole(vmi: VMIView) -> Iterator[Cause]:
    """6: refuse a fraction of a CPU as the limit of dedicated CPUs."""
    limit = vmi.limit("cpu")
    if vmi.is_dedicated and limit.value > 0 and not limit.is_whole:
        yield vmi.cause("resources.limits.cpu", _fraction("limits.cpu", limit))


def dedicated_memory_is_guaranteed(vmi: VMIView) -> Iterator[Cause]:
    """7: refuse dedicated CPUs together with different memory request and limit."""
    request, limit = vmi.request("memory"), vmi.limit("memory")
    if vmi.is_dedicated and request.value > 0 and limit.value > 0 and request.value != limit.value:
        yield vmi.cause("resources.requests.memory", _unequal("memory", request, limit))


def dedicated_has_cpus(vmi: VMIView) -> Iterator[Cause]:
    """8: refuse dedicated CPUs without a number of CPUs; no spec with KubeVirt's defaults is refused."""
    if vmi.is_dedicated and not (vmi.vcpus or vmi.request("cpu").value or vmi.limit("cpu").value):
        message = "dedicatedCpuPlacement is true but no number of CPUs is given: set cpu.cores"
        yield vmi.cause("cpu.dedicatedCpuPlacement", message)


def dedicated_request_is_limit(vmi: VMIView) -> Iterator[Cause]:
    """9: refuse different CPU request and limit of dedicated CPUs."""
    request, limit = vmi.request("cpu"), vmi.limit("cpu")
    if vmi.is_dedicated and request.value > 0 and limit.value > 0 and request.value != limit.value:
        yield vmi.cause("cpu.dedicatedCpuPlacement", _unequal("cpu", request, limit))


def dedicated_amount_is_vcpus(vmi: VMIView) -> Iterator[Cause]:
    """10: refuse an amount of dedicated CPUs that is not the number of vCPUs."""
    request, limit = vmi.request("cpu"), vmi.limit("cpu")
    amounts = (("requests.cpu", request), ("limits.cpu", limit))
    given = [f"{name} is {amount.text}" for name, amount in amounts if amount.value > 0]
    if vmi.is_dedicated and given and vmi.vcpus and vmi.vcpus not in (request.value, limit.value):
        message = (
            f"{' and '.join(given)} but the guest has {vmi.vcpus} vCPUs: set {vmi.vcpus} or leave the amount out"
            " (KubeVirt itself adds CPUs for the emulator and I/O threads)"
        )
        yield vmi.cause("cpu.dedicatedCpuPlacement", message)


def dedicated_threads_fit_architecture(vmi: VMIView) -> Iterator[Cause]:
    """11: refuse guest threads on arm64."""
    threads = vmi.cpu.get("threads") or 0
    if vmi.is_dedicated and threads > 1 and vmi.architecture == ARM64:
        message = f"cpu.threads is {threads}, but arm64 guests have one thread per core: set cpu.threads to 1"
        yield Cause(f"{vmi.root}architecture", message)


def dedicated_threads_are_two_at_most(vmi: VMIView) -> Iterator[Cause]:
    """12: refuse more than two guest threads per core."""
    threads = vmi.cpu.get("threads") or 0
    if vmi.is_dedicated and threads > 2:
        message = f"cpu.threads is {threads}; dedicated vCPUs have at most 2 per core: set threads to 2 and raise cores"
        yield vmi.cause("cpu.dedicatedCpuPlacement", message)


def numa_needs_dedicated(vmi: VMIView) -> Iterator[Cause]:
    """14: refuse NUMA passthrough without dedicated CPUs."""
    if vmi.passes_numa_through and not vmi.is_dedicated:
        message = (
            "guestMappingPassthrough is set without dedicated CPUs: set cpu.dedicatedCpuPlacement to true"
        )
        yield vmi.cause("cpu.numa.guestMappingPassthrough", message)


def numa_needs_hugepages(vmi: VMIView) -> Iterator[Cause]:
    """15: refuse NUMA passthrough without huge pages."""
    if vmi.passes_numa_through and not vmi.has_hugepages:
        message = "guestMappingPassthrough is set without huge pages: set memory.hugepages.pageSize, e.g. 2Mi"
        yield vmi.cause("cpu.numa.guestMappingPassthrough", message)


def emulator_needs_dedicated(vmi: VMIView) -> Iterator[Cause]:
    """16: refuse an isolated emulator thread without dedicated CPUs."""
    if vmi.cpu.get("isolateEmulatorThread") and not vmi.is_dedicated:
        message = (
            "isolateEmulatorThread is true without dedicated CPUs: "
            "set cpu.dedicatedCpuPlacement to true or remove it"
        )
        yield vmi.cause("cpu.isolateEmulatorThread", message)


def feature_policies_are_known(vmi: VMIView) -> Iterator[Cause]:
    """17: refuse an unknown policy of a CPU feature."""
    for index, feature in enumerate(vmi.cpu.get("features") or ()):
        policy = feature.get("policy") or ""
        if policy and policy not in FEATURE_POLICIES:
            name = feature.get("name")
            message = f"policy of CPU feature {shortened(name)} is {shortened(policy)}: "
            message += f"set one of {', '.join(FEATURE_POLICIES)}"
            field = f"{vmi.root}domain.cpu.features[{index}].policy"
            yield Cause(field, message, NOT_SUPPORTED, ("feature", name or "", policy))


def sockets_are_within_maximum(vmi: VMIView) -> Iterator[Cause]:
    """18: refuse more sockets than the maximum for hotplug."""
    sockets, maximum = vmi.cpu.get("sockets") or 0, vmi.cpu.get("maxSockets") or 0
    if 0 != maximum < sockets:
        message = (
            f"cpu.sockets is {sockets}, greater than cpu.maxSockets {maximum}:"
            " lower the first or raise the second"
        )
        yield vmi.cause("cpu.sockets", message)


def realtime_needs_dedicated(vmi: VMIView) -> Iterator[Cause]:
    """19: refuse realtime without dedicated CPUs."""
    if vmi.cpu.get("realtime") is not None and not vmi.is_dedicated:
        message = "cpu.realtime is set without dedicated CPUs: set dedicatedCpuPlacement to true"
        yield vmi.cause("cpu.dedicatedCpuPlacement", message, REQUIRED)


def realtime_needs_numa(vmi: VMIView) -> Iterator[Cause]:
    """20: refuse realtime without NUMA passthrough."""
    if vmi.cpu.get("realtime") is not None and not vmi.passes_numa_through:
        message = "cpu.realtime is set without NUMA passthrough: set cpu.numa.guestMappingPassthrough to {}"
        yield vmi.cause("cpu.numa.guestMappingPassthrough", message, REQUIRED)


def realtime_mask_is_readable(vmi: VMIView) -> Iterator[Cause]:
    """Refuse a realtime mask that would make KubeVirt fail on the node when the VM starts."""
    mask = (vmi.cpu.get("realtime") or {}).get("mask") or ""
    try:
        RealtimeMask.parse(mask)
    except BadContract as error:
        message = (
            f"mask is {shortened(mask)!r}: {error}; set vCPU numbers such as 0-3,^1, or leave it out for all"
        )
        yield vmi.cause("cpu.realtime.mask", message)


def io_threads_policy_is_known(vmi: VMIView) -> Iterator[Cause]:
    """21: refuse an unknown policy of I/O threads; an empty one is unknown too."""
    policy = vmi.domain.get("ioThreadsPolicy")
    if policy is not None and policy not in list(IOThreadsPolicy):
        message = f"ioThreadsPolicy is {shortened(policy)!r}: set one of {', '.join(IOThreadsPolicy)}"
        yield vmi.cause("ioThreadsPolicy", message)


def io_threads_pool_has_a_count(vmi: VMIView) -> Iterator[Cause]:
    """22: refuse a pool of I/O threads without a number of threads; the cause's field is KubeVirt's, not in the API."""
    count = find(vmi.domain, "ioThreads.supplementalPoolThreadCount")
    if vmi.domain.get("ioThreadsPolicy") == IOThreadsPolicy.SUPPLEMENTAL_POOL and not count:
        message = (
            "ioThreadsPolicy supplementalPool needs threads: set ioThreads.supplementalPoolThreadCount to 1"
        )
        yield vmi.cause("ioThreads.count", f"{message} or more")


def memory_is_given(vmi: VMIView) -> Iterator[Cause]:
    """25: refuse a VMI without any memory size."""
    if not (vmi.request("memory").value or vmi.has_hugepages or vmi.memory.get("guest") is not None):
        yield vmi.cause("memory", "no memory size is given: set memory.guest, for example 1Gi", REQUIRED)


def model_fits_architecture(vmi: VMIView) -> Iterator[Cause]:
    """23: refuse a CPU model on arm64 other than the host's."""
    model = vmi.cpu.get("model") or "host-passthrough"
    if vmi.architecture == ARM64 and model != "host-passthrough":
        message = (
            f"cpu.model is {shortened(model)}; arm64 supports host-passthrough only: set that or leave it out"
        )
        yield vmi.cause("cpu.model", message, NOT_SUPPORTED)


def architecture_is_known(vmi: VMIView) -> Iterator[Cause]:
    """24: refuse an architecture that KubeVirt does not run."""
    if vmi.architecture and vmi.architecture not in ARCHITECTURES:
        message = f"architecture is {shortened(vmi.architecture)}: set one of {', '.join(ARCHITECTURES)}"
        yield Cause(f"{vmi.root}architecture", message)


def hotplug_memory_is_possible(vmi: VMIView) -> Iterator[Cause]:
    """Refuse a VM with both memory hotplug and realtime or NUMA passthrough (LiveUpdate only)."""
    if not vmi.settings.live_update or vmi.memory.get("maxGuest") is None:
        return
    for name, is_set in (
        ("cpu.realtime", vmi.cpu.get("realtime") is not None),
        ("cpu.numa.guestMappingPassthrough", vmi.passes_numa_through),
    ):
        if is_set:
            message = f"memory.maxGuest is set, but memory hotplug does not work with {name}: remove maxGuest"
            yield vmi.cause("memory.guest", message)


def instancetype_counts_cpus(vmi: VMIView) -> Iterator[Cause]:
    """Refuse CPU counts in the VM together with an instancetype, which sets these itself."""
    for path in (*CPU_AMOUNTS, "cpu.sockets", "cpu.cores", "cpu.threads"):
        found = find(vmi.domain, path)
        if found is not None and found != 0:
            message = f"{path} is {shortened(found)}, but spec.instancetype decides the number of CPUs: leave it out"
            yield vmi.cause(path, message)


def _negative(name: str, amount: Amount) -> str:
    return f"{name} is {amount.text}, which is negative: set 0 or more, or leave it out"


def _exceeds(name: str, request: Amount, limit: Amount) -> str:
    return (
        f"requests.{name} {request.text} is more than limits.{name} {limit.text}: lower it or raise the limit"
    )


def _fraction(name: str, amount: Amount) -> str:
    return f"{name} is {amount.text}; dedicatedCpuPlacement needs a whole number: set it to {amount.value}"


def _unequal(name: str, request: Amount, limit: Amount) -> str:
    larger = max(request, limit, key=lambda amount: (amount.value, amount.text))
    found = f"requests.{name} is {request.text} but limits.{name} is {limit.text}"
    return (
        f"{found}; with dedicatedCpuPlacement they must be equal: set both to {larger.text} or leave one out"
    )


SPEC_RULES: Final[tuple[Rule, ...]] = (
    memory_request_is_sensible,
    memory_limit_is_not_negative,
    memory_request_is_within_limit,
    hugepages_divide_memory,
    guest_memory_is_within_limit,
    cpu_request_is_not_negative,
    cpu_limit_is_not_negative,
    cpu_request_is_within_limit,
    dedicated_has_memory,
    dedicated_request_is_whole,
    dedicated_limit_is_whole,
    dedicated_memory_is_guaranteed,
    dedicated_has_cpus,
    dedicated_request_is_limit,
    dedicated_amount_is_vcpus,
    dedicated_threads_fit_architecture,
    dedicated_threads_are_two_at_most,
    numa_needs_dedicated,
    numa_needs_hugepages,
    emulator_needs_dedicated,
    feature_policies_are_known,
    sockets_are_within_maximum,
    realtime_needs_dedicated,
    realtime_needs_numa,
    realtime_mask_is_readable,
    io_threads_policy_is_known,
    io_threads_pool_has_a_count,
)
ARCHITECTURE_RULES: Final[tuple[Rule, ...]] = (model_fits_architecture, architecture_is_known)
VMI_RULES: Final = (*SPEC_RULES, memory_is_given, *ARCHITECTURE_RULES)
REPLICA_SET_RULES: Final = (*SPEC_RULES, *ARCHITECTURE_RULES)
VM_RULES: Final = (*REPLICA_SET_RULES, hotplug_memory_is_possible)

# Rules that hold with any instancetype or preference. An instancetype never overwrites a VM's own CPU amounts
# and memory: both given is a conflict and refused by KubeVirt. It may add dedicated placement, vCPUs, NUMA,
# huge pages, memory, an I/O thread count and a preferred architecture: rules that miss one of those wait for the VMI.
INSTANCETYPE_RULES: Final[tuple[Rule, ...]] = (
    memory_request_is_sensible,  # amounts are the VM's own
    memory_limit_is_not_negative,
    memory_request_is_within_limit,
    cpu_request_is_not_negative,
    cpu_limit_is_not_negative,
    cpu_request_is_within_limit,
    dedicated_request_is_whole,  # placement can be added by an instancetype, never taken away
    dedicated_limit_is_whole,
    dedicated_memory_is_guaranteed,
    dedicated_request_is_limit,
    dedicated_threads_fit_architecture,  # threads and architecture are not changed once the VM sets them
    dedicated_threads_are_two_at_most,
    feature_policies_are_known,  # a preference adds features, it does not change those of the VM
    sockets_are_within_maximum,  # sockets together with an instancetype are a conflict anyway
    realtime_mask_is_readable,  # the VM's own mask, or a conflict
    io_threads_policy_is_known,  # the VM's own policy, or a conflict
    model_fits_architecture,  # model and architecture are not changed once the VM sets them
    architecture_is_known,
    hotplug_memory_is_possible,  # maxGuest, realtime and NUMA of the VM stay
)

# Rules that are skipped if an amount of memory is unreadable, because they would report it as missing or wrong too.
NEEDS_ALL_MEMORY: Final = frozenset({hugepages_divide_memory, dedicated_has_memory, memory_is_given})
