"""Many pods at once: each has its CPUs at its first instruction, or the time until then is published."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.environments.node.node import EXCLUSIVE, pod
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    import pytest

    from tests.environments.node.node import Node

PODS = 40
GONE = 10  # of them are deleted while others start


def windows(node: Node) -> dict[str, float | None]:
    """Return for how many seconds each pod may have run unpinned, None if not yet known."""
    return {
        pod["name"]: container.get("applied", {}).get("windowSeconds")
        for pod in node.agent.state()["pods"]
        for container in pod["containers"].values()
    }


def test_no_update_is_lost_under_churn(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """While pods come and go each joins the shared CPUs; pods that did not start on them are counted."""
    [pinned] = node.run(pod("pinned", EXCLUSIVE, cpu="1"))
    until_equal("own CPU", lambda: len(pinned.cpus), 1)
    shared = node.all - pinned.cpus
    names = [f"churn-{number}" for number in range(PODS)]
    node.apply(*(pod(name, wanted=str(shared)) for name in names[: PODS // 2]))
    until("some run", lambda: sum(pod["status"]["phase"] == "Running" for pod in node.pods()) > GONE)
    node.remove(*names[:GONE])
    node.apply(*(pod(name, wanted=str(shared)) for name in names[PODS // 2 :]))

    stayed = names[GONE:]
    for name in stayed:
        container = node.running(name)
        until_equal(
            f"CPUs of {name}",
            lambda container=container: (container.cpus, container.allowed),  # type: ignore[misc]
            (shared, shared),
        )
    assert len(pinned.cpus) == 1

    def lines(name: str) -> list[str]:
        return [text for _, text in node.log_lines(name, node.pod(name)["metadata"]["uid"])]

    for name in stayed:
        until_equal(f"log of {name}", lambda name=name: lines(name)[-1:], [str(shared)])  # type: ignore[misc]
    until("every window is told", lambda: all(windows(node).get(name) is not None for name in stayed))
    seconds = windows(node)
    late = {name: seconds[name] or 0.0 for name in stayed if len(lines(name)) > 1}
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(stayed)} pods: {len(stayed) - len(late)} right at their first instruction, the others after"
            f" {sorted(late.values())} s\n"
        )
    assert all(late.values()), late
