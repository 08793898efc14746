"""Client of QEMU's monitor, from which tests read the roles of threads; the agent never uses it."""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.environments.vm.guests import CPU
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedRWPair
    from pathlib import Path

SECONDS = 300.0  # time limit of actions that take a second, and twenty on an emulated machine


class Monitor:
    """A connection to one QEMU."""

    def __init__(self, stream: BufferedRWPair) -> None:
        self._stream = stream

    def ask(self, command: str, **arguments: object) -> Any:
        """Run a command and return its answer; events in between are skipped."""
        self._stream.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        self._stream.flush()
        while True:
            answer = json.loads(self._stream.readline())
            assert "error" not in answer, answer
            if "return" in answer:
                return answer["return"]

    def vcpus(self) -> dict[int, int]:
        """Return the thread of each vCPU by index, in QEMU's own pid namespace."""
        return {cpu["cpu-index"]: cpu["thread-id"] for cpu in self.ask("query-cpus-fast")}

    def iothreads(self) -> dict[str, int]:
        """Return the iothreads by name."""
        return {thread["id"]: thread["thread-id"] for thread in self.ask("query-iothreads")}

    def plug(self, count: int = 1) -> None:
        """Plug vCPUs, each into the first free slot in QEMU's list (the highest index), as Kata does."""
        for _ in range(count):
            free = next(slot for slot in self.ask("query-hotpluggable-cpus") if "qom-path" not in slot)
            place = free["props"]
            key = "-".join(str(place.get(part, 0)) for part in ("socket-id", "core-id", "thread-id"))
            self.ask("device_add", driver=CPU, id=f"cpu-{key}", **place)

    def enable(self, *capabilities: str) -> None:
        """Enable the migration capabilities, on either side."""
        wanted = [{"capability": name, "state": True} for name in capabilities]
        self.ask("migrate-set-capabilities", capabilities=wanted)

    def add_iothread(self, name: str) -> None:
        """Start one more iothread."""
        self.ask("object-add", **{"qom-type": "iothread", "id": name})


@contextmanager
def monitor(path: Path) -> Iterator[Monitor]:
    """Connect once QEMU answers; its machine then exists with every thread."""
    with until(f"{path} answers", lambda: _connect(path), SECONDS) as connection:
        connection.settimeout(SECONDS)
        with connection.makefile("rwb") as stream:
            assert b"QMP" in stream.readline()
            talker = Monitor(stream)
            talker.ask("qmp_capabilities")
            yield talker


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection
