"""Generate docs/metrics.md: every metric of the three programs with type and labels, from the programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase

import agent.metrics
import certs.metrics
import webhook.metrics
from agent.config import USER_AGENT
from agent.dra.claim_metrics import ClaimMetrics
from agent.local.pods_dir import PodsDir
from agent.quiet.execs import ExecMetrics
from agent.quiet.noise_metrics import NoiseMetrics
from agent.report.load_metrics import MetricsReport
from apiserver.access import Access
from apiserver.client import Api

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

PAGE: Final = Path("docs/metrics.md")
NOWHERE: Final = Path("/nonexistent")
HEAD: Final = """\
# Metrics

Written by `make metrics` from the programs; do not edit. A test compares this page with the programs.

Each program serves `/metrics` in the text format of Prometheus over plain HTTP: its own metrics and those of
its process (`process_cpu_seconds_total`, `process_resident_memory_bytes`, ...). What to scrape, alerts and a dashboard
are in [the component `monitoring`](operator-guide.md#install); what each alert means is in
[troubleshooting.md](troubleshooting.md#alerts). A gauge with labels has only series of label values that occur now.
"""
PROGRAMS: Final = {
    "Webhook": "`corepin webhook`, port 8080; each replica counts for itself.",
    "Agent": "`corepin agent`, port 8081; one for each node. Without an API server `api_*`, `hidden_cost` and `*_millicores` are missing, and without the component `dra` `claim_*` and `resource_claims*`.",
    "Certificates": "`corepin certs run`, port 8082.",
}
# The values of labels; a label can have different meanings in different metrics.
LABELS: Final = {
    "files": "`configuration` or `certificate`",
    "endpoint": "`mutate` or `validate`",
    "outcome": "`allowed`, `patched`, `denied`, `unreadable` (an answer about an object that cannot be read), `rejected` (not a review, or a review that was not accepted), `failed` (a bug)",
    "reason": "of a review: empty, the reason of its first cause, or `malformed`, `too_large`, `content_type`, `busy`, `slow` or `bug`; of a claim: see [troubleshooting.md](troubleshooting.md#why-a-claim-is-not-fulfilled)",
    "vcpus": "`one_to_one` (each vCPU has a CPU of its own) or `together` (the pod's status says why)",
    "set": "`online`, `universe`, `reserved`, `allocatable`, `set_aside`, `isolated`, `exclusive`, `pod` (pools of pods), `idle`, `share`, `shared`, `free`",
    "policy": "`exclusive` or `share`",
    "path": "how the CPUs were set: `nri` (at the container's creation), `cgroup` (in its cgroup), `runtime` (over CRI), `affinity` (of the threads of its virtual machine), or `found` (it was set already)",
    "state": "`proven`, `not_proven` (not all of its tasks are read), `narrowed` (tasks use a part by their own"
    " choice), `drift` (tasks may run outside of its CPUs), `compromised` (other containers may run there), `failing` (its CPUs"
    " cannot be set), `fought` (another program keeps changing them)",
    "kind": "of `*_millicores`: `requested`, or `there` (what the CPUs provide); of `hidden_cost`: `idle_cpus`, `sidecar_millicores`, `sidecar_bytes`",
    "namespace": "of the pod",
    "pod": "the pod's name",
    "container": "the container's name",
    "result": "`done` or `not done` (tried again); of a call to the kubelet: `ok`, `later` (silent, or limited), `refused` or `too_large`",
    "near": "`yes` (near all devices with a known NUMA node), `partly`, `no` or `unknown`",
    "reporter": "the part of the agent that reports: `PodReport`, `EventReport`, `NodeReport`, `PoolReport`, `TopologyReport`, `SliceReport`, `MetricsReport`, `LogReport`",
    "code": "the HTTP status, 0 for no answer",
    "step": "the step of a rotation",
    "certificate": "`leaf`, `ca`, `next-ca`",
    "shows": "the certificate that the replica serves: `current`, `another`, or `nothing` (no answer)",
}


@dataclass(frozen=True, order=True)
class Row:
    """One metric as exposed."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def page() -> str:
    """Return the whole page."""
    rows = programs()
    used = sorted({label for listed in rows.values() for row in listed for label in row.labels})
    tables = [f"\n## {title}\n\n{PROGRAMS[title]}\n\n{_table(listed)}" for title, listed in rows.items()]
    labels = "".join(f"| `{label}` | {LABELS[label]} |\n" for label in used)
    return f"{HEAD}{''.join(tables)}\n## Labels\n\n| label | values |\n|---|---|\n{labels}"


def programs() -> dict[str, list[Row]]:
    """Return the metrics of each program."""
    web, node, rotation = webhook.metrics.Metrics(), agent.metrics.Metrics(), certs.metrics.Metrics()
    for name in webhook.metrics.OBSERVED:
        web.observe(name, lambda: 0.0)
    NoiseMetrics(node.registry)
    ExecMetrics(node.registry)
    ClaimMetrics(node.registry)
    MetricsReport(node.registry, Api(Access("http://localhost"), USER_AGENT), PodsDir(NOWHERE))
    registries = {"Webhook": web.registry, "Agent": node.registry, "Certificates": rotation.registry}
    return {title: sorted(_rows(registry)) for title, registry in registries.items()}


def _rows(registry: CollectorRegistry) -> Iterator[Row]:
    """Yield the metrics of a registry, except process metrics."""
    for collector in _private(registry, "collector_to_names"):
        if isinstance(collector, MetricWrapperBase):
            (family,) = collector.describe()
            yield _row(family, _private(collector, "labelnames"))
        elif not isinstance(collector, ProcessCollector):
            for family in collector.collect():
                yield _row(family, _private(family, "labelnames"))


def _private(holder: object, name: str) -> Any:
    """Return a private attribute of prometheus-client, which has no public access to names of unused labels."""
    return getattr(holder, f"_{name}")


def _row(family: Metric, labels: Iterable[str]) -> Row:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return Row(name, family.type, tuple(labels), family.documentation)


def _table(rows: list[Row]) -> str:
    head = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
    return head + "".join(
        f"| `{row.name}` | {row.kind} | {', '.join(f'`{label}`' for label in row.labels)} | {row.meaning} |\n"
        for row in rows
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
