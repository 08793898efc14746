"""Exit status of a container's first process, by the exit code that the runtime keeps.

Before Linux 6.15 the kernel forgets the status once the parent has collected the process, and a first process is
collected by the runtime's shim. The runtime keeps the exit code while the container is listed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused, TooLarge, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent.interfaces import ContainerExit, PassedContainer
    from agent.wrappers.registry import Claim, Holder
    from pinning.cmk.pools import Reclaimed

    AskExit = Callable[[str], Awaitable[ContainerExit | None]]

KILLED: Final = 128 + signal.SIGKILL

logger = logging.getLogger(__name__)


async def not_known(_: str) -> None:
    """Return None, because no runtime reports exits."""


class RuntimeExits:
    """Ended first processes whose exit status is unknown until the runtime lists their containers as exited.

    `killed` is called with the entries of a killed process. Entries that wait for the runtime are not saved, so they
    are lost if the agent exits.
    """

    def __init__(self, ask: AskExit, killed: Callable[[tuple[Reclaimed, ...]], None]) -> None:
        self._ask = ask
        self._killed = killed
        self._first_pids: dict[str, int] = {}  # pid of the first process of each live container
        self._unsettled: dict[
            str, tuple[Reclaimed, ...]
        ] = {}  # entries by container, to be listed if it was killed
        self._due = asyncio.Event()

    def is_first(self, claim: Claim) -> bool:
        """Return whether a claim's process is its container's first one, whose exit code the runtime keeps."""
        return self._first_pids.get(claim.holder.id) == claim.process.pid

    def wait_for(self, holder: Holder, entries: tuple[Reclaimed, ...]) -> None:
        """Store the entries of an ended first process; they are listed if the runtime reports that it was killed."""
        if entries:
            self._unsettled[holder.id] = entries

    def passed(self, containers: Mapping[str, PassedContainer]) -> None:
        """Store the node's live containers after a pass, and ask about those that have ended."""
        known = self._first_pids
        self._first_pids = {each.id: each.pid or known.get(each.id, 0) for each in containers.values()}
        if not self._unsettled.keys() <= containers.keys():
            self._due.set()

    async def run(self, listed: Callable[[], None]) -> None:
        """Ask the runtime about exited containers, one at a time; call `listed` after each one that was killed."""
        while True:
            await self._due.wait()
            self._due.clear()
            for container_id in self._unsettled.keys() - self._first_pids.keys():
                if await self._settle(container_id):
                    listed()

    async def _settle(self, container_id: str) -> bool:
        """Ask the runtime for an exit code; if the process was killed, list its entries as reclaimed and return True.

        If the runtime is out of reach, return False and retry at the next pass.
        """
        try:
            end = await self._ask(container_id)
        except (Gone, Refused, TooLarge) as error:
            end, reason = None, str(error)
        except Unavailable:
            return False
        else:
            reason = "the runtime reports no exit code"
        entries = self._unsettled.pop(container_id)
        if end is None:
            facts = {"container": entries[0].container, "pid": entries[0].pid, "reason": reason}
            logger.info("how a process ended is not known", extra={"facts": facts})
        if end is None or end.code != KILLED:
            return False
        facts = {"container": entries[0].container, "pid": entries[0].pid, "source": entries[0].source}
        logger.info("process killed", extra={"facts": facts | {"reason": end.reason, "when": end.finished}})
        self._killed(entries)
        return True
