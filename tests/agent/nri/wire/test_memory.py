"""Memory of the process does not grow, whatever a runtime sends."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.nri.wire import nri_pb2 as pb
from tests.agent.nri.fake_runtime import container, pod, request
from tests.agent.nri.wire.plugins import Recorder
from tests.agent.nri.wire.serving import Served

MESSAGE = 4 * 2**20 - 1000
GROWTH = 6 * MESSAGE  # a message has several copies at once, and the allocator keeps some memory
LONG = pod("a", annotations={"long": "x" * MESSAGE})


class Forgetful(Recorder):
    """Handlers that store nothing."""

    def _record(self, *_: object) -> None:
        pass


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def long_requests() -> None:
    """Send two creations of almost 4 MiB."""
    served = Served(handlers=Forgetful())
    served.runtime.register()
    served.runtime.create(LONG, container("c", "a"))
    served.runtime.create(LONG, container("c", "a"))
    served.close()


def nothing_but_entries() -> None:
    """Send a list of two million empty containers."""
    served = Served(handlers=Forgetful())
    served.runtime.register()
    served.runtime.send(request(1, "Synchronize", b"\x12\x00" * (MESSAGE // 2)))
    assert served.reason() == "more than 20000 pods and containers"
    served.close()


def breaking_off() -> None:
    """Disconnect in the middle of a long message, and between the parts of a synchronization."""
    served = Served(handlers=Forgetful())
    served.runtime.register()
    part = pb.SynchronizeRequest(pods=[LONG], more=True)
    served.runtime.call("Synchronize", part, pb.SynchronizeResponse)
    served.runtime.send(struct.pack(">II", 1, MESSAGE) + bytes(MESSAGE - 1))
    served.close()


def growth(visit: Callable[[], None]) -> int:
    """Return by how many bytes ten connections grow this process."""
    before = resident_bytes()
    for _ in range(10):
        visit()
    return resident_bytes() - before


@pytest.mark.parametrize("visit", [long_requests, nothing_but_entries, breaking_off])
def test_connections_do_not_leak_memory(visit: Callable[[], None]) -> None:
    """Ten connections with long messages need no more memory than one, except for the allocator's reserve.

    A leak would grow in every round of ten; the allocator's reserve grows in at most one of three rounds.
    """
    visit()
    assert any(growth(visit) < GROWTH for _ in range(3))
