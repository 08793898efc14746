"""The agent's status of a pod's machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tests.environments.waiting import SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Mapping


class NamedThreads(Protocol):
    """An agent, as far as it tells its state."""

    def state(self) -> Any:
        """Return its state."""
        ...


def told(agent: NamedThreads, pod: str = "vm") -> Mapping[str, Any]:
    """Return what it says; nothing while it says nothing."""
    found = [known.get("vm") for known in (agent.state() or {}).get("pods", ()) if known["name"] == pod]
    return found[0] or {} if found else {}


def until_told(agent: NamedThreads, pod: str = "vm", **fields: object) -> None:
    """Wait until it says all this of a pod; fail with what it said last."""
    last: Mapping[str, Any] = {}

    def is_so() -> bool:
        nonlocal last
        last = told(agent, pod)
        return all(last.get(name) == value for name, value in fields.items())

    try:
        until(
            f"told {fields}", is_so, 2 * SECONDS
        )  # a machine that does not run is placed after half a minute
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from error


def until_reason(agent: NamedThreads, part: str, pod: str = "vm", seconds: float = SECONDS) -> None:
    """Wait until it says why there is no CPU for each vCPU, with these words."""
    until(f"told {part!r}", lambda: part in told(agent, pod).get("reason", ""), seconds)
