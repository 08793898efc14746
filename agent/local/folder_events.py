"""Changes of a folder: files that were written, replaced or removed, each after its writer closed it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from agent.kernel.inotify import CLOSE_WRITE, DELETE, MOVED_FROM, MOVED_TO, OVERFLOW, Inotify

if TYPE_CHECKING:
    from pathlib import Path

LOOK_SECONDS: Final = 1.0  # between full listings, for changes that the kernel did not report

logger = logging.getLogger(__name__)


class FolderEvents:
    """inotify events of one folder; if inotify is not available, the caller polls the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify(CLOSE_WRITE | MOVED_FROM | MOVED_TO | DELETE)
        except OSError as error:
            logger.warning("no inotify, polling", extra={"facts": {"reason": str(error)}})

    def names(self) -> frozenset[str]:
        """Return the names of files that were closed, moved or deleted since the last call; empty if events were lost.

        The watch is renewed, because the folder may have been replaced.
        """
        if self._inotify is None:
            return frozenset()
        try:
            self._inotify.add(self._folder)
        except OSError:  # the folder is missing, which the next listing reports
            return frozenset()
        events = self._inotify.news()
        if any(event.watch == OVERFLOW for event in events):
            return frozenset()
        return frozenset(event.name for event in events)

    async def wait(self) -> None:
        """Wait for an event, at most until the next full listing is due."""
        if self._inotify is None:
            await asyncio.sleep(LOOK_SECONDS)
            return
        loop, wake = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._inotify, wake.set)
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await wake.wait()
        except TimeoutError:
            return
        finally:
            # The reader stays removed until `names` reads the event, which would otherwise wake this again.
            loop.remove_reader(self._inotify)

    def close(self) -> None:
        """Stop watching."""
        if self._inotify:
            self._inotify.close()
