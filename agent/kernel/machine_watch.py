"""Kernel events after which the agent must read the machine again: CPU hotplug, and writes to files.

The kernel sends uevents over netlink to each network namespace that the initial user namespace owns; no capability is
needed. inotify reports writes of files and their replacement.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import logging
import os
import socket
import struct
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.errors import Refused
from agent.kernel.inotify import ATTRIB, CREATE, MODIFY, MOVED_TO, NamedWatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_UEVENTS: Final = 15, 1  # NETLINK_KOBJECT_UEVENT, and the multicast group of the kernel's own messages
_MESSAGE_BYTES: Final = 4096  # bytes read of a message, of which only the start is used
# Inode number of the initial user namespace, a constant of the kernel.
_INITIAL_USER_NAMESPACE: Final = 0xEFFF_FFFD
_GET_OWNER: Final = 0xB701  # NS_GET_USERNS of ioctl_ns(2)
_ATTACH_FILTER: Final = 26  # SO_ATTACH_FILTER
# A filter of the kernel for messages that begin with "online" or "offline". Each pod causes dozens of other messages,
# because its network devices are new, and they would wake the agent.
_LOAD, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_FILTER: Final = (
    (_LOAD, 0, 0, 0),  # load the first four bytes of the message
    (_IS_EQUAL, 1, 0, int.from_bytes(b"onli")),
    (_IS_EQUAL, 0, 1, int.from_bytes(b"offl")),
    (_RETURN, 0, 0, 0xFFFF_FFFF),
    (_RETURN, 0, 0, 0),
)

logger = logging.getLogger(__name__)


class KernelMachineWatch:
    """Reports changes of CPUs, and of files that the machine is read from (`MachineWatch` of `agent.reconcile`)."""

    def __init__(self, files: Callable[[], Iterable[str]]) -> None:
        self._files = files
        # a file that another one replaces loses a link: ATTRIB
        self._written = NamedWatches(MODIFY | ATTRIB | CREATE | MOVED_TO)
        self._followed: frozenset[str] = frozenset()
        self._cpus = _cpu_events()

    def follow(self) -> bool:
        """Watch the current files; return whether every change will be reported, so that rare polling suffices.

        For a missing file its folder is watched.
        """
        self._followed = frozenset(self._files())
        try:
            absent = [file for file in self._followed if not self._written.add(file, file)]
            folders = {str(Path(file).parent) for file in absent}
            watched = [self._written.add(folder, folder) for folder in folders]
        except Refused:
            return False
        for gone in self._written.names - self._followed - folders:
            self._written.remove(gone)
        return self._cpus is not None and all(watched)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after events until cancelled."""
        loop = asyncio.get_running_loop()
        readers: dict[int, Callable[[], bool]] = {self._written.fileno(): self._has_news}
        if self._cpus is not None:
            readers[self._cpus] = partial(_drain, self._cpus)
        for descriptor, has_news in readers.items():
            loop.add_reader(descriptor, _report, has_news, changed)
        try:
            await loop.create_future()
        finally:
            for descriptor in readers:
                loop.remove_reader(descriptor)

    def _has_news(self) -> bool:
        """Return whether a watched file was written, replaced or created, ignoring other files in its folder."""
        events = self._written.events()
        names = ["/".join(filter(None, event)) for event in events or ()]
        return events is None or not self._followed.isdisjoint(names)

    def close(self) -> None:
        """Close socket and inotify instance."""
        self._written.close()
        if self._cpus is not None:
            os.close(self._cpus)
        self._cpus = None


def _report(has_news: Callable[[], bool], changed: Callable[[], None]) -> None:
    if has_news():
        changed()


def _drain(events: int) -> bool:
    """Read all pending events and return True, also if the kernel dropped some (ENOBUFS)."""
    with suppress(OSError):  # BlockingIOError: there is no further one
        while True:
            os.read(events, _MESSAGE_BYTES)
    return True


def _cpu_events() -> int | None:
    """Return a socket with the events of CPUs; None if the kernel sends none to this network namespace."""
    try:
        if not _hears():
            return None
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _UEVENTS[0]) as found:
            code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _FILTER))
            program = struct.pack("HP", len(_FILTER), ctypes.addressof(code))
            found.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
            found.bind((0, _UEVENTS[1]))
            return found.detach()
    except OSError as error:
        logger.info("no events of CPUs, polling", extra={"facts": {"reason": str(error)}})
        return None


def _hears() -> bool:
    """Return whether the initial user namespace owns the network namespace of this process."""
    with Path("/proc/self/ns/net").open("rb") as net:
        owner = fcntl.ioctl(net, _GET_OWNER)
    try:
        return os.fstat(owner).st_ino == _INITIAL_USER_NAMESPACE
    finally:
        os.close(owner)
