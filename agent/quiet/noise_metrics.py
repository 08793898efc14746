"""Metrics of noise on exclusive CPUs.

A container with unknown counts has no series, because an unchanged counter would mean that there is no noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import Counter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import CollectorRegistry

    from agent.node_state import ContainerNoise
    from pinning.planning.observed import Owner

_LABELS: Final = ("namespace", "pod", "container")
_TEXTS: Final = {
    "interrupts": "Interrupts of devices on the CPUs of an exclusive container.",
    "softirqs": "Softirqs on the CPUs of an exclusive container.",
    "wait_seconds": "Seconds for which threads of an exclusive container waited for its CPUs, all together.",
    "involuntary_switches": "How often threads of an exclusive container were preempted on its CPUs.",
    "other_slices": "Timeslices of other threads on the CPUs of an exclusive container.",
}


class NoiseMetrics:
    """Counters of the noise on exclusive CPUs, by container, and of the CPU time of the rounds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            name: Counter(f"corepin_agent_noise_{name}", text, _LABELS, registry=registry)
            for name, text in _TEXTS.items()
        }
        self._cost = Counter(
            "corepin_agent_noise_cpu_seconds", "CPU time spent on counting noise.", registry=registry
        )
        self._shown: dict[str, set[tuple[str, str, str]]] = {name: set() for name in _TEXTS}

    def took(self, seconds: float) -> None:
        """Add the CPU time of one round."""
        self._cost.inc(seconds)

    def show(self, noise: Mapping[Owner, ContainerNoise], names: Mapping[str, tuple[str, str]]) -> None:
        """Add the counts of one round; remove the series of containers with unknown counts."""
        for kind, counter in self._counters.items():
            counts = {
                (*names[owner.pod_uid], owner.container): getattr(it, kind)
                for owner, it in noise.items()
                if owner.pod_uid in names and getattr(it, kind) is not None
            }
            for labels in self._shown[kind] - counts.keys():
                counter.remove(*labels)
            for labels, count in counts.items():
                counter.labels(*labels).inc(count)
            self._shown[kind] = set(counts)
