"""Be told which files of a folder were written, replaced or removed, each after its writer closed it."""

from __future__ import annotations

from agent.kernel.inotify import CLOSE_WRITE, DELETE, MOVED_FROM, MOVED_TO, OVERFLOW, Inotify


class FolderEvents(Inotify):
    """A queue of the kernel that tells the names of files. A file that is being written is not told yet."""

    def __init__(self) -> None:
        super().__init__(CLOSE_WRITE | MOVED_FROM | MOVED_TO | DELETE)

    def names(self) -> frozenset[str] | None:
        """Return the files that changed since the last call; None when events were lost: it may be any."""
        news = self.news()
        return None if any(one.watch == OVERFLOW for one in news) else frozenset(one.name for one in news)
