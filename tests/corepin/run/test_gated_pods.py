"""The status that the agent publishes for gated pods, read by the gate."""

from __future__ import annotations

from typing import Any

from agent.report.pod_status import pod_status
from corepin.run.gate import read_refusals
from pinning.planning.node_config import NodeConfig
from pinning.pods.types import Pod
from tests.agent.states import EXCLUSIVE, ISOLATE, bound, state_of
from tests.pods import container
from tests.tables import table


def gated(*containers: Any, **more: Any) -> Pod:
    """Return a pod of the node whose containers wait in the gate."""
    pod = bound("a", *containers, **more)
    gate = container("corepin-gate", {"cpu": "200m", "memory": "64M"})
    return {**pod, "spec": {**(pod["spec"] or {}), "initContainers": [gate]}}


def budgeted(cpus: int, *containers: Any) -> Pod:
    """Return a gated pod with a budget, whose containers without an amount run in its pool."""
    pod = gated(*containers, annotations=ISOLATE)
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    spec: Any = {**(pod["spec"] or {}), "resources": {"requests": amounts, "limits": amounts}}
    return {**pod, "spec": spec}


@table(
    "pod, config, passes",
    {
        "assigned": (gated(container("main", 1), annotations=ISOLATE), {}, True),
        "refused": (gated(container("main", 64), annotations=ISOLATE), {}, False),
        "gave up meanwhile": (
            gated(container("main", 64), annotations={"cpu-manager.corepin.io/pod": "none", **ISOLATE}),
            {},
            True,
        ),
        "need not fit any more": (gated(container("main", 64), annotations=EXCLUSIVE), {}, True),
        "pool assigned": (budgeted(2, container("main"), container("side")), {}, True),
        "pool refused": (budgeted(64, container("main"), container("side")), {}, False),
        "pool refused beside a slice": (budgeted(64, container("main", 1), container("side")), {}, False),
        "observed only": (gated(container("main", 1), annotations=ISOLATE), {"observe": True}, True),
        "unreadable": (
            gated(container("main", 1), annotations={"cpu-manager.corepin.io/pod": "banana"}),
            {},
            True,
        ),
    },
)
def test_gated_pod_gets_its_status_before_it_runs(pod: Pod, config: dict[str, bool], passes: bool) -> None:
    """A pod in the gate gets its status annotation at once, also when there is nothing left to report."""
    state = state_of(pod, proven=False, config=NodeConfig(**config))  # type: ignore[arg-type]
    refusals = read_refusals(pod_status(state.pods[0], None) or "")
    assert refusals is not None
    assert (refusals == ()) is passes
