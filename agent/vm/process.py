"""One process and its threads, read from /proc.

A process chooses its names, its command line and its number of threads, so every read is bounded. Its folder stays
open, so that a reused pid is never read.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused
from agent.kernel.mover import ProcessThreads
from agent.kernel.procfs import FLAGS, PARENT, STARTED, parse_stat, status_words
from pinning.guests.threads import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MOST_THREADS: Final = 8_192  # KVM allows 4,096 vCPUs in a guest, which has fewer other threads
# Listings in a row: threads may start faster than they are read; the next poll reads the rest.
_MOST_LISTINGS: Final = 8
_NONE: Final[Mapping[int, tuple[Task, str]]] = MappingProxyType({})
_MOST_FILES: Final = 65_536
_FEW_BYTES: Final = 4096
_STATUS_BYTES: Final = 65_536  # a status file has 1,500 bytes, and up to 11 for each of the process's groups
_LINKS: Final = 2  # link count of an empty folder: the kernel adds one for each thread
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOTDIR})


class Process:
    """A process, by its open folder in /proc. Reads of exited threads raise OSError."""

    def __init__(self, folder: int, pid: int) -> None:
        self._folder = folder
        self.pid = pid

    def folders(self) -> dict[int, int]:
        """Return the thread ids, up to MOST_THREADS, each with the inode number of its folder."""
        with self._tasks() as entries:
            return {int(entry.name): entry.inode() for entry in entries}

    @contextmanager
    def _tasks(self) -> Iterator[Iterator[os.DirEntry[str]]]:
        folder = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            with os.scandir(folder) as entries:
                yield islice(entries, MOST_THREADS)
        finally:
            os.close(folder)

    def threads(self) -> ProcessThreads:
        """Return the process's threads as a target for `move_threads`."""
        return ProcessThreads(self._folder, self.pid)

    def has(self, task: Task) -> bool:
        """Return whether a thread still exists, and its id was not reused."""
        try:
            return self._thread(task.tid, 0)[0] == task
        except OSError:
            return False

    def _thread(self, tid: int, folder: int) -> tuple[Task, str]:
        """Return a thread and its name; raise OSError if it exited."""
        name, fields = parse_stat(self._read(f"task/{tid}/stat"))
        return Task(tid, int(fields[STARTED]), folder), printable(name)

    def count(self) -> int:
        """Return the process's number of threads."""
        return os.stat("task", dir_fd=self._folder).st_nlink - _LINKS

    def started(self) -> int:
        """Return the process's start time, in clock ticks since boot."""
        # From the first thread's file, because for the process's own file the kernel sums the times of all threads.
        return int(self._stat(f"task/{self.pid}/stat")[STARTED])

    def parent(self) -> int:
        """Return the pid of the process's parent."""
        return int(self._stat("stat")[PARENT])

    def flags(self, task: int) -> int:
        """Return the kernel's flags of a thread (PF_...)."""
        return int(self._stat(f"task/{task}/stat")[FLAGS])

    def _stat(self, path: str) -> list[str]:
        return parse_stat(self._read(path))[1]

    def name(self, task: int) -> str:
        """Return a thread's name, with "?" for unprintable characters."""
        return printable(self._read(f"task/{task}/comm").removesuffix("\n"))

    def names(self, known: Mapping[int, tuple[Task, str]] = _NONE) -> dict[Task, str]:
        """Return the names of the process's threads, ascending by id, re-listing until no new thread appears.

        `known` are threads by id of an earlier reading, with their names if these are final, else "".
        """
        found: dict[int, tuple[Task, str]] = {}
        folders = self.folders()
        for _ in range(_MOST_LISTINGS):
            for tid in folders.keys() - found.keys():
                with suppress(FileNotFoundError, ProcessLookupError):
                    found[tid] = self._named(tid, folders[tid], known.get(tid))
            folders = self.folders()
            if folders.keys() <= found.keys():
                break
        return {task: name for tid, (task, name) in sorted(found.items()) if tid in folders}

    def _named(self, tid: int, folder: int, known: tuple[Task, str] | None) -> tuple[Task, str]:
        if known and known[0].folder == folder:
            return known if known[1] else (known[0], self.name(tid))
        task, name = self._thread(tid, folder)
        return task, known[1] or name if known and known[0] == task else name

    def system_call(self, task: int) -> list[str]:
        """Return number and arguments of the system call a thread is in, as texts; ["running"] if it is in none."""
        return self._read(f"task/{task}/syscall").split()

    def open_files(self) -> dict[int, str]:
        """Return the target of each open file descriptor of the process, without those closed during the read."""
        found: dict[int, str] = {}
        folder = os.open("fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            with os.scandir(folder) as entries:
                numbers = [entry.name for entry in islice(entries, _MOST_FILES)]
            for number in numbers:
                with suppress(FileNotFoundError):
                    found[int(number)] = os.readlink(number, dir_fd=folder)
        finally:
            os.close(folder)
        return found

    def ids(self) -> list[int]:
        """Return the process's pid in each of its pid namespaces, outermost first.

        Raise Refused if its groups, which come first in the file, fill the bytes that are read.
        """
        status = read_piece("status", self._folder, _STATUS_BYTES)
        if numbers := status_words(status, "NSpid"):
            return [int(number) for number in numbers]
        if len(status) > _STATUS_BYTES / 2:
            raise Refused(f"process {self.pid} has too many groups to know its pid namespaces: give it fewer")
        return [self.pid]  # a kernel without pid namespaces

    def command_line(self, limit: int) -> list[str]:
        """Return the words of the process's command line that end within the first `limit` bytes."""
        return read_words("cmdline", limit, self._folder)

    def _read(self, path: str) -> str:
        return read_piece(path, self._folder)


@contextmanager
def opened(proc: Path, pid: int) -> Iterator[Process]:
    """Open the folder of a process; raise Gone if it exited, Refused if it cannot be read, also inside the block."""
    try:
        folder = os.open(f"{proc}/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield Process(folder, pid)
        finally:
            os.close(folder)
    except OSError as error:
        raise _translated(error, pid) from error


def thread_count(proc: Path, pid: int) -> int:
    """Return the thread count of a process in one call; raise Gone, Refused."""
    try:
        return os.stat(f"{proc}/{pid}/task").st_nlink - _LINKS  # noqa: PTH116 a third of the time of Path.stat
    except OSError as error:
        raise _translated(error, pid) from error


def task_ids(proc: Path, pid: int, started: int) -> frozenset[int]:
    """Return the thread ids of a process, up to MOST_THREADS; raise Gone (also if the pid was reused), Refused.

    Each poll calls this for every machine, so it opens one folder and creates no object per thread.
    """
    try:
        folder = os.open(f"{proc}/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if int(parse_stat(read_piece(f"{pid}/stat", folder))[1][STARTED]) != started:
                raise Gone(f"process {pid} has exited, and its pid is reused")
            if os.fstat(folder).st_nlink - _LINKS <= MOST_THREADS:
                return frozenset(map(int, os.listdir(folder)))  # noqa: PTH208 names alone
            with os.scandir(folder) as entries:
                return frozenset(int(entry.name) for entry in islice(entries, MOST_THREADS))
        finally:
            os.close(folder)
    except OSError as error:
        raise _translated(error, pid) from error


def _translated(error: OSError, pid: int) -> Gone | Refused:
    if error.errno in _GONE:
        return Gone(f"process {pid} ended")
    return Refused(f"process {pid} cannot be read: {error.strerror}")


def processes(proc: Path) -> list[int]:
    """Return the pids of all processes, ascending."""
    with os.scandir(proc) as entries:
        return sorted(int(entry.name) for entry in entries if entry.name.isdecimal())


def read_words(path: str, limit: int, folder: int | None = None) -> list[str]:
    """Return the words of a command line that end within the first `limit` bytes; raise OSError."""
    return read_piece(path, folder, limit).split("\0")[:-1]


def read_piece(path: str, folder: int | None = None, limit: int = _FEW_BYTES) -> str:
    """Read a file of /proc that the kernel returns in one read, up to `limit` bytes; raise OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)  # a tenth of the time of Path.read_text
    try:
        return os.read(file, limit).decode("utf-8", "replace")
    finally:
        os.close(file)


def printable(text: str) -> str:
    """Return a text with "?" for every character that a terminal could interpret."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in text)
