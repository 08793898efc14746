"""docs/metrics.md has the metrics that the programs expose, and the meaning of their labels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

import agent.metrics
from pinning.planning.refusal import Reason
from scripts import metrics_page
from tests.agent.states import ISOLATE, bound, state_of
from tests.pods import container

SCRAPED = (
    "namespace",
    "pod",
    "container",
    "node",
    "le",
)  # labels of the target, and of a histogram's buckets


def series(row: metrics_page.Row) -> list[str]:
    """Return the names of a metric's time series."""
    return (
        [f"{row.name}{end}" for end in ("_bucket", "_sum", "_count")]
        if row.kind == "histogram"
        else [row.name]
    )


def values(registry: CollectorRegistry, metric: str, label: str) -> set[str]:
    """Return the values of a label that a metric exposes now."""
    families = [family for family in registry.collect() if family.name == metric]
    return {sample.labels[label] for family in families for sample in family.samples}


def described(label: str) -> set[str]:
    """Return the values of a label that the page names."""
    return set(re.findall(r"`([\w -]+)`", metrics_page.LABELS[label]))


def test_the_page_is_written_from_the_programs() -> None:
    """The page equals the output of `make metrics`."""
    assert metrics_page.PAGE.read_text(encoding="utf-8") == metrics_page.page()


def test_every_label_is_documented() -> None:
    """Every label of a metric is documented, and no other."""
    rows = [row for listed in metrics_page.programs().values() for row in listed]
    assert {label for row in rows for label in row.labels} == set(metrics_page.LABELS)
    assert all(row.meaning.endswith(".") and row.name.startswith("corepin_") for row in rows)


def test_values_of_labels_are_those_of_the_agent() -> None:
    """The documented values of labels for CPU sets and containers are those that the agent exposes."""
    metrics = agent.metrics.Metrics()
    metrics.show(state_of(bound("web", container("main", 1), container("big", 64), annotations=ISOLATE)))

    assert values(metrics.registry, "corepin_agent_cpus", "set") == described("set")
    assert values(metrics.registry, "corepin_agent_containers", "state") <= described("state")
    assert values(metrics.registry, "corepin_agent_assignments", "policy") <= described("policy")
    assert values(metrics.registry, "corepin_agent_refusals", "reason") == {Reason.NOT_ENOUGH}


def test_words_about_containers_are_those_of_the_code() -> None:
    """The page has exactly the containers' label values of agent/metrics.py."""
    code = Path(agent.metrics.__file__).read_text(encoding="utf-8")
    words = re.findall(r'yield "(\w+)"|_containers\.labels\("(\w+)"\)', code)
    assert {first or second for first, second in words} == described("state")


def test_reporters_are_those_of_the_agent() -> None:
    """The documented values of the label `reporter` are the agent's classes of reports."""
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(Path("agent/report").glob("*.py")))
    assert set(re.findall(r"^class (\w+Report)\b", code, re.MULTILINE)) == described("reporter")


def queries() -> list[tuple[str, str]]:
    """Return each query of alerts and dashboard, with the text that its labels are used in."""
    folder = Path("manifests/components/monitoring")
    alerts = yaml.safe_load((folder / "alerts.yaml").read_text(encoding="utf-8"))
    rules = [rule for group in alerts["spec"]["groups"] for rule in group["rules"]]
    panels = json.loads((folder / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    shown = [
        (target["expr"], target.get("legendFormat", "")) for panel in panels for target in panel["targets"]
    ]
    return [(rule["expr"], " ".join(rule["annotations"].values())) for rule in rules] + shown


@pytest.mark.parametrize(("query", "words"), queries())
def test_queries_ask_for_labels_that_there_are(query: str, words: str) -> None:
    """Alerts and dashboard query only metrics, labels and values that a program exposes or scraping adds."""
    rows = {
        name: row for listed in metrics_page.programs().values() for row in listed for name in series(row)
    }
    asked = re.findall(r"(corepin_\w+)(?:\{(.*?)\})?", query)
    assert asked or query.startswith("up{")  # Prometheus' own metric about a target
    known = set(SCRAPED)
    for name, selector in asked:
        known |= set(rows[name].labels)
        for label, listed in re.findall(r'(\w+)=~?"(.*?)"', selector):
            assert label in (*SCRAPED, *rows[name].labels)
            assert listed.startswith("$") or set(listed.split("|")) <= described(label)
    used = re.findall(r"\$labels\.(\w+)|\{\{ ?(\w+) ?\}\}", words)
    assert {first or second for first, second in used} <= known
