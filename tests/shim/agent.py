"""A fake agent that gives preset answers and records its requests."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.environments.server.daemon import plain_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SECONDS: Final = 60.0
ENVIRONMENT: Final = (
    "CMK_CPUS_ASSIGNED=1,3\nCMK_CPUS_ASSIGNED_MASK=A\nCMK_CPUS_SHARED=0\nCMK_CPUS_INFRA=0,2\n"
)
Finished = subprocess.CompletedProcess[str]


class Asked(NamedTuple):
    """One request, and the process that sent it."""

    text: str
    pid: int


def ok(body: str = ENVIRONMENT) -> bytes:
    """Return a positive answer."""
    return b"ok %d\n%s" % (len(body.encode()), body.encode())


def error(line: str) -> bytes:
    """Return a refusal."""
    return b"error %d\n%s" % (len(line.encode()), line.encode())


@dataclass
class FakeAgent:
    """A listening socket in an install directory; answers are given in order, and the last one is repeated."""

    folder: Path
    answers: list[bytes] = field(default_factory=lambda: [ok()])
    asked: list[Asked] = field(default_factory=list)
    _listener: socket.socket | None = None

    @property
    def command(self) -> Path:
        """The path of the shim beside the socket."""
        return self.folder / "cmk"

    def listen(self) -> None:
        """Create the socket, and answer on it until it is closed."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / "cmk.sock"))
        (self.folder / "cmk.sock").chmod(0o666)
        self._listener.listen(16)
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Stop listening and leave the socket file, as a killed agent does."""
        if self._listener:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def run(self, *words: str, env: Mapping[str, str] | None = None, text: str | None = None) -> Finished:
        """Run the shim until it exits."""
        return subprocess.run(
            [str(self.command), *words],
            env={**plain_environment(), **(env or {})},
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            errors="backslashreplace",  # because answers of tests contain any bytes
            check=False,
            timeout=SECONDS,
        )

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        text = ""
        while not text.endswith("\n\n"):
            part = connection.recv(4096)
            if not part:
                return
            text += part.decode()
        self.asked.append(Asked(text, pid))
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(self.answers[min(len(self.asked), len(self.answers)) - 1])


@contextmanager
def fake_agent(command: Path, *, is_listening: bool = True) -> Iterator[FakeAgent]:
    """Copy the command into a new folder with an agent's socket, whose path is short enough."""
    folder = Path(tempfile.mkdtemp(prefix="cmk-", dir="/tmp"))
    folder.chmod(0o755)
    shutil.copy2(command, folder / "cmk")
    agent = FakeAgent(folder)
    try:
        if is_listening:
            agent.listen()
        yield agent
    finally:
        agent.close()
        shutil.rmtree(folder)
