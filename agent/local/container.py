"""One start of a container of the runtime `local`."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pinning.planning.observed import State

if TYPE_CHECKING:
    from agent.local.process import Process
    from agent.local.spec import Ended

# Variable in the environment of a container's processes, by which the next agent finds the container.
ID: Final = "COREPIN_LOCAL_ID"


@dataclass(slots=True, eq=False)
class LocalContainer:
    """One run of a container from start to exit; after a restart the container has another id."""

    id: str
    name: str
    cgroup: str
    process: Process | None = None
    end: Ended | None = None
    is_shown: bool = False  # a pass has listed the container as created
    is_asked: bool = False  # SIGTERM was sent
    has_cgroup: bool = True

    @classmethod
    def new(cls, pod_uid: str, name: str, pod_cgroup: str) -> LocalContainer:
        """Return a container with an id of its own."""
        return cls(f"{pod_uid}/{name}/{secrets.token_hex(8)}", name, f"{pod_cgroup}/{name}")

    def known_by(self, named: str) -> str:
        """Return `named`, an id from a process's environment, if it is of this pod and container, else the own id."""
        prefix, _, _ = self.id.rpartition("/")
        return named if re.fullmatch(rf"{re.escape(prefix)}/[0-9a-f]{{16}}", named) else self.id

    @property
    def state(self) -> State:
        """The container's state: created, running or exited."""
        if self.end:
            return State.EXITED
        return State.RUNNING if self.process else State.CREATED

    @property
    def pid(self) -> int:
        """The pid of the container's process; 0 if none runs."""
        return self.process.pid if self.process and not self.end else 0
