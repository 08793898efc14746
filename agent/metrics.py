"""The agent's metrics, in a registry of their own. Gauges are computed from the newest state at each scrape."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.registry import Collector

from agent.node_state import Path
from pinning.machine.cpuset import union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from agent.node_state import ContainerState, NodeState, VMState
    from pinning.machine.cpuset import CPUSet

PLAN: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
APPLY: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
WINDOW: Final = (0.0, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class _First(Collector):
    """Collector that calls a function at each scrape before other collectors run; it has no metrics."""

    def __init__(self, catch_up: Callable[[], None]) -> None:
        self._catch_up = catch_up

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because it has no metric of its own."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Call the function, and yield no metric."""
        self._catch_up()
        return ()


class Metrics:
    """Every metric of one agent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_First(self._catch_up))
        self._newest: NodeState | None = None  # the newest state, which the gauges do not show yet
        # Values that a gauge with one label shows now, by label.
        self._shown: dict[Gauge, Mapping[str, int]] = {}
        ProcessCollector(registry=self.registry)
        self._times()
        self._gauges()
        self._counters()
        self._of_devices()

    def _times(self) -> None:
        self.plan_seconds = self._histogram("plan_seconds", "Time of one plan.", PLAN)
        self.apply_seconds = self._histogram(
            "apply_seconds",
            "Time from the first write of a plan to its last read-back; plans without writes are not counted.",
            APPLY,
        )
        self.window_seconds = self._histogram(
            "unpinned_window_seconds",
            "From the start of a container's first process until its cpuset was read back right; 0: it was right before.",
            WINDOW,
            "path",
        )
        # An alert watches this series. It begins with 0, because Prometheus sees no increase in one that begins later.
        self.window_seconds.labels(str(Path.NRI))

    def _gauges(self) -> None:
        self._cpus = self._gauge("cpus", "CPUs by set.", "set")
        self._assignments = self._gauge("assignments", "Containers that hold CPUs, by policy.", "policy")
        self._refusals = self._gauge("refusals", "Claims that are not fulfilled, by reason.", "reason")
        self._uncounted = self._gauge("uncounted_claims", "Claims whose cores the scheduler does not count.")
        self._containers = self._gauge(
            "containers", "Containers by what is wrong with them; proven: nothing is wrong.", "state"
        )
        self._vms = self._gauge(
            "vms",
            "Virtual machines that hold CPUs, by how their vCPUs run on these: one_to_one or together.",
            "vcpus",
        )
        self._synchronised = self._gauge("synchronised", "1 while pods and containers are listed in full.")
        self._observes = self._gauge("observes", "1 while another program allocates the CPUs of this node.")
        self._start_path = self._gauge(
            "start_path",
            "1 for the way by which new containers get their CPUs: nri, cgroup or runtime.",
            "path",
        )
        self._other_plugins = self._gauge("other_plugins", "Other NRI plugins that were seen to set CPUs.")
        self._nri_not_listed = self._gauge(
            "nri_not_listed",
            "1 while the runtime ends NRI connections instead of listing its containers.",
        )
        self._throttled = self._gauge(
            "exclusive_throttled_periods",
            "Periods in which the quota stopped an exclusive container (nr_throttled), read at least every 30 s.",
            "namespace",
            "pod",
            "container",
        )

        self._refused = self._gauge(
            "reports_refused",
            "Pods (PodReport), namespaces (EventReport) and topologies (TopologyReport) that cannot be written; they hold up no others.",
            "reporter",
        )

    def _counters(self) -> None:
        self.passes = self._counter("rounds", "Passes of the reconcile loop.")
        self.errors = self._counter("round_errors", "Passes that failed and were tried again.")
        self.writes = self._counter("cpuset_writes", "Cpusets written, by result.", "result")
        self.rewrites = self._counter("foreign_rewrites", "Cpusets that another program rewrote.")
        self.label_overwrites = self._counter(
            "label_overwrites",
            "Times that another program overwrote labels of the node that the agent keeps.",
        )
        self.rebuilds = self._counter("rebuilds", "Ledgers rebuilt because no checkpoint could be used.")
        self.boot_exposed_seconds = self._counter(
            "vm_boot_exposed_seconds",
            "Seconds for which booting virtual machines could run on CPUs that others own.",
        )
        self._reports = self._counter(
            "report_errors", "Reports that failed and were tried again.", "reporter"
        )

    def _of_devices(self) -> None:
        self._device_containers = self._gauge(
            "device_containers",
            "Containers with CPUs and devices, by whether they run near their devices: yes, partly, no or unknown.",
            "near",
        )
        self._podresources_calls = self._counter(
            "podresources_calls",
            "Calls to the kubelet's PodResources API for devices, by result: ok, later, refused or too_large.",
            "result",
        )
        self._podresources_seconds = self._histogram(
            "podresources_seconds", "Time of one call to the kubelet's PodResources API for devices.", APPLY
        )
        self.devices_unknown_seconds = self._histogram(
            "devices_unknown_seconds",
            "Time from when a pod with devices and a claim was seen until the kubelet named its devices.",
            WINDOW,
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"corepin_agent_{name}", text, labels, registry=self.registry, buckets=buckets)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"corepin_agent_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"corepin_agent_{name}", text, labels, registry=self.registry)

    def podresources_called(self, result: str, seconds: float) -> None:
        """Count a call to the kubelet for devices."""
        self._podresources_calls.labels(result).inc()
        self._podresources_seconds.observe(seconds)

    def report_failed(self, reporter: str) -> None:
        """Count a report that failed."""
        self._reports.labels(reporter).inc()

    def show_refused(self, reporter: str, number: int) -> None:
        """Set the number of objects of a reporter that the API server refuses now."""
        self._refused.labels(reporter).set(number)

    def show(self, state: NodeState) -> None:
        """Store the state; gauges are set at the next scrape, because passes are more frequent than scrapes."""
        self._newest = state

    def _catch_up(self) -> None:
        if self._newest:
            self._show_state(self._newest)
            self._newest = None

    def _show_state(self, state: NodeState) -> None:
        self._show(self._cpus, {name: len(cpus) for name, cpus in _sets(state).items()})
        self._show(self._assignments, Tally(str(assignment.policy) for assignment in state.ledger))
        self._show(self._refusals, Tally(str(refusal.reason) for refusal in state.refusals))
        self._uncounted.set(sum(bool(container.uncounted) for container in _containers(state)))
        self._show(
            self._containers, Tally(word for container in _containers(state) for word in _states(container))
        )
        self._show(self._device_containers, Tally(filter(None, map(_near, _containers(state)))))
        self._show(self._vms, Tally(_pinning(pod.vm) for pod in state.pods if pod.vm and pod.vm.cpus))
        self._containers.labels("failing").set(len(state.failures))
        self._containers.labels("fought").set(len(state.conflicts))
        self._synchronised.set(state.is_synchronised)
        self._observes.set(state.observes)
        self._show(self._start_path, Tally([str(state.start_path)]))
        self._other_plugins.set(len(state.other_plugins))
        self._nri_not_listed.set(state.listing_fault is not None)

    def _show(self, gauge: Gauge, numbers: Mapping[str, int]) -> None:
        """Set a gauge to numbers by label, unless it shows them already: setting labels costs more than comparing."""
        shown = dict(numbers)  # Counter objects that are equal may differ in labels with the value 0
        if self._shown.get(gauge) == shown:
            return
        self._shown[gauge] = shown
        gauge.clear()
        for word, count in shown.items():
            gauge.labels(word).set(count)

    def show_throttled(self, periods: Mapping[tuple[str, str, str], int]) -> None:
        """Set the number of throttled periods of each exclusive container, by namespace, pod and container."""
        self._throttled.clear()
        for names, count in periods.items():
            self._throttled.labels(*names).set(count)


def _sets(state: NodeState) -> dict[str, CPUSet]:
    sets, ledger = state.sets, state.ledger
    return {
        "online": state.topology.online,
        "universe": sets.universe,
        "reserved": sets.reserved,
        "allocatable": sets.allocatable,
        "set_aside": sets.pools.set_aside,
        "isolated": sets.isolated,
        "exclusive": union(assignment.cpus for assignment in ledger if assignment.is_exclusive),
        "pod": union(pool.cpus for pool in ledger.pools.values()),
        "idle": state.idle,
        "share": ledger.share,
        "shared": state.shared,
        "free": state.free,
    }


def _containers(state: NodeState) -> Iterator[ContainerState]:
    for pod in state.pods:
        yield from pod.containers


def _near(container: ContainerState) -> str:
    """Return a word for whether a container's devices are near its CPUs; empty without devices or CPUs."""
    if container.devices_unknown:
        return "unknown"
    near = {device.near for device in container.devices} - {None}
    if not near:
        return "unknown" if container.devices else ""
    return "partly" if len(near) > 1 else "yes" if near.pop() else "no"


def _pinning(vm: VMState) -> str:
    return "one_to_one" if vm.is_one_to_one else "together"


def _states(container: ContainerState) -> Iterator[str]:
    """Yield the states of a running container: proven, not_proven, drift, narrowed, compromised."""
    if container.proof is None:
        return
    if container.proof.cpus != container.wanted or container.proof.outside:
        yield "drift"
    elif container.has_cpus and not container.proof.unread:
        yield "proven"
    if container.has_cpus and container.proof.unread:
        yield "not_proven"
    if container.proof.narrowed:
        yield "narrowed"
    if container.intruders:
        yield "compromised"
