"""Changes of this machine that simultaneous runs of the tests share; the last run undoes them."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def until_last_use(
    record: Path, in_use: Path, begin: Callable[[str], str], end: Callable[[str], None]
) -> Iterator[None]:
    """Run the block; `begin` updates the text of the record before it, `end` undoes it when no block is left.

    `record` is locked during reads and writes, `in_use` is locked shared by each block.
    """
    with in_use.open("a") as use:
        with _locked(record):
            fcntl.flock(use, fcntl.LOCK_SH)
            record.write_text(begin(record.read_text()))
        try:
            yield
        finally:
            with _locked(record), suppress(BlockingIOError):
                # Release our share first, then test whether another block holds one.
                fcntl.flock(use, fcntl.LOCK_UN)
                fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end(record.read_text())
                record.write_text("")


@contextmanager
def _locked(record: Path) -> Iterator[None]:
    with record.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
