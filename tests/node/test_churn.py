"""Many pods at once: each one has its CPUs at its first instruction, or the time until then is measured and told."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING

from tests.node.node import EXCLUSIVE, pod
from tests.node.waiting import until, until_equal

if TYPE_CHECKING:
    import pytest

    from tests.node.node import Node

PODS = 40
GONE = 10  # of them are deleted while others start
LONGEST_SECONDS = 10.0  # tens of milliseconds on an idle machine; two CPUs that do much else take longer
WINDOW = "corepin_agent_unpinned_window_seconds"


def seconds(earlier: str, later: str) -> float:
    """Return the time between two lines of a log."""
    ends = [datetime.fromisoformat(text[:26] + "+00:00") for text in (earlier, later)]
    return (ends[1] - ends[0]).total_seconds()


def test_no_update_is_lost_under_churn(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """While pods come and go each joins the shared CPUs, and every window until then is measured and told."""
    [pinned] = node.run(pod("pinned", EXCLUSIVE, cpu="1"))
    until_equal("own CPU", lambda: len(pinned.cpus), 1)
    shared = node.all - pinned.cpus
    counted, told = (node.agent.metric(f"{WINDOW}_{part}") for part in ("count", "sum"))
    names = [f"churn-{number}" for number in range(PODS)]
    node.apply(*(pod(name, wanted=str(shared)) for name in names[: PODS // 2]))
    until("some run", lambda: sum(one["status"]["phase"] == "Running" for one in node.pods()) > GONE)
    node.remove(*names[:GONE])
    node.apply(*(pod(name, wanted=str(shared)) for name in names[PODS // 2 :]))

    stayed = names[GONE:]
    for name in stayed:
        one = node.running(name)
        until_equal(f"CPUs of {name}", lambda one=one: (one.cpus, one.allowed), (shared, shared))  # type: ignore[misc]
    assert len(pinned.cpus) == 1

    def lines(name: str) -> list[tuple[str, str]]:
        return node.log_lines(name, node.pod(name)["metadata"]["uid"])

    for name in stayed:
        until_equal(f"log of {name}", lambda name=name: (lines(name) or [("", "")])[-1][1], str(shared))  # type: ignore[misc]
    seen = [lines(name) for name in stayed]
    windows = [seconds(one[0][0], one[-1][0]) for one in seen]
    at_birth = sum(len(one) == 1 for one in seen)
    metric = node.agent.metric(f"{WINDOW}_sum") - told
    until("every window is told", lambda: node.agent.metric(f"{WINDOW}_count") - counted >= len(stayed))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(stayed)} pods: {at_birth} right at their first instruction, longest window seen inside"
            f" {max(windows) * 1000:.1f} ms, told by the agent: {metric * 1000:.1f} ms in all\n"
        )
    assert max(windows) < LONGEST_SECONDS
