"""The agent's published status of a pod's virtual machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tests.environments.waiting import SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReportsState(Protocol):
    """An agent that reports its state."""

    def state(self) -> Any:
        """Return its state."""
        ...


def published_vm(agent: ReportsState, pod: str = "vm") -> Mapping[str, Any]:
    """Return the published virtual machine of a pod; empty without one."""
    found = [known.get("vm") for known in (agent.state() or {}).get("pods", ()) if known["name"] == pod]
    return found[0] or {} if found else {}


def until_published(agent: ReportsState, pod: str = "vm", **fields: object) -> None:
    """Wait until these fields of a pod's virtual machine are published; fail with the last state."""
    last: Mapping[str, Any] = {}

    def is_so() -> bool:
        nonlocal last
        last = published_vm(agent, pod)
        return all(last.get(name) == value for name, value in fields.items())

    try:
        until(
            f"published {fields}", is_so, 2 * SECONDS
        )  # the agent pins a machine that does not run after half a minute
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from error


def until_reason(agent: ReportsState, part: str, pod: str = "vm", seconds: float = SECONDS) -> None:
    """Wait until the reason why vCPUs are not pinned one to one contains this text."""
    until(f"published {part!r}", lambda: part in published_vm(agent, pod).get("reason", ""), seconds)
