"""Live reload of files: a value is rebuilt when the bytes change; the last good value stays if they are invalid.

Bytes are compared instead of file times, because Kubernetes replaces a mounted Secret or ConfigMap by renaming a
symbolic link. Readers call `current()` once per review and so use one consistent revision.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from webhook.metrics import ReloadMeter

T = TypeVar("T")
# Contents of the files in order; None for an optional file that is absent.
Contents = tuple[bytes | None, ...]

logger = logging.getLogger(__name__)


class Unusable(Exception):
    """Files that cannot be used; the message names the file and the reason."""


class Source(Protocol):
    """A reader of bytes, such as a file."""

    @property
    def path(self) -> object:
        """Name of the source in messages."""
        ...

    def read(self) -> bytes | None:
        """Return the bytes, None for an optional source that is absent."""
        ...


@dataclass(frozen=True, slots=True)
class File:
    """One file to watch; an optional one may be absent until it first appears."""

    path: Path
    optional: bool = False

    def read(self) -> bytes | None:
        """Return the bytes, None for an optional file that is absent."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError as error:
            if self.optional:
                return None
            raise Unusable(f"{self.path} does not exist: create it, or name another file") from error
        except OSError as error:
            raise Unusable(f"{self.path} cannot be read ({error.strerror}): name a readable file") from error


@dataclass(frozen=True, slots=True)
class Revision(Generic[T]):
    """A value that is in use, with its revision number, counted from 1."""

    number: int
    value: T


class Watched(Generic[T]):
    """A value built from files. Call `load` once, then `refresh` repeatedly, from one thread at a time."""

    def __init__(
        self, name: str, files: tuple[Source, ...], build: Callable[[Contents], T], meter: ReloadMeter
    ) -> None:
        self._name = name
        self._files = files
        self._build = build
        self._meter = meter
        self._serving: Contents = ()
        self._seen: Contents | str = ()  # last validated contents, or why the files could not be read
        self._revision: Revision[T] | None = None

    def current(self) -> Revision[T]:
        """Return the last valid value of the files, which is in use."""
        if self._revision is None:
            raise RuntimeError(f"{self._name} is not loaded")
        return self._revision

    def load(self) -> None:
        """Build the first value, or raise `Unusable`."""
        contents = self._read()
        self._adopt(contents, self._build(contents))

    def refresh(self) -> None:
        """Load changed files and put them into use; if they are invalid keep the old value and log the reason."""
        try:
            contents = self._read()
        except Unusable as error:
            self._keep(str(error), error)
            return
        if contents == self._seen:
            return
        if contents == self._serving:
            self._restore(contents)
        else:
            self._replace(contents)

    def _read(self) -> Contents:
        contents = tuple(file.read() for file in self._files)
        for file, before, now in zip(self._files, self._serving, contents, strict=False):
            if before is not None and now is None:
                raise Unusable(f"{file.path} does not exist any more: restore it")
        return contents

    def _replace(self, contents: Contents) -> None:
        try:
            value = self._build(contents)
        except Exception as error:  # noqa: BLE001 - a bug in `build` is logged and must not end the process
            self._judge_again_or_keep(contents, error)
            return
        if self._is_still(contents):
            self._adopt(contents, value)

    def _judge_again_or_keep(self, contents: Contents, error: Exception) -> None:
        """Keep the old value; if the files have changed since, let the next refresh validate them again."""
        if self._is_still(contents):
            self._keep(contents, error)

    def _is_still(self, contents: Contents) -> bool:
        try:
            return self._read() == contents
        except Unusable:
            return False

    def _adopt(self, contents: Contents, value: T) -> None:
        number = self._revision.number + 1 if self._revision else 1
        self._revision = Revision(number, value)
        self._serving = self._seen = contents
        self._meter.adopted(number)
        logger.info("files taken into service", extra={"facts": {"files": self._name, "generation": number}})

    def _restore(self, contents: Contents) -> None:
        """Record that the files on disk again have the contents that are in use."""
        self._seen = contents
        number = self.current().number
        self._meter.adopted(number)
        logger.info(
            "files have again the contents in use",
            extra={"facts": {"files": self._name, "generation": number}},
        )

    def _keep(self, seen: Contents | str, error: Exception) -> None:
        if seen == self._seen:
            return
        self._seen = seen
        self._meter.kept()
        logger.error(
            "changed files refused, the previous ones stay in use",
            extra={"facts": {"files": self._name, "reason": str(error)}},
            exc_info=None if isinstance(error, Unusable) else error,
        )


class Refreshable(Protocol):
    """A value that is checked for changes from time to time."""

    def refresh(self) -> None:
        """Check for changes, and apply them."""
        ...


async def watch(watched: Iterable[Refreshable], seconds: float) -> None:
    """Refresh periodically, in a thread because a slow disk must not delay a review."""
    targets = tuple(watched)
    while True:
        await asyncio.sleep(seconds)
        for target in targets:
            await asyncio.to_thread(target.refresh)
