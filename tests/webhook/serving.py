"""A webhook process under test: started on free ports, its log followed line by line."""

from __future__ import annotations

import contextlib
import json
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tests.environments import plain_http

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

ROOT = Path(__file__).parents[2]
EMPTY = "00000000:00000000"  # both queues of a socket
PATIENCE_SECONDS = 60.0  # for a busy machine; nothing waits that long for success


class Log:
    """Lines of a stream, kept while they come."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.lines: list[dict[str, Any]] = []
        self.plain: list[bytes] = []  # what is not JSON
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._follow, args=(stream,))
        self._thread.start()

    def _follow(self, stream: IO[bytes]) -> None:
        for line in stream:
            with self._news:
                self._keep(line)
                self._news.notify_all()
        stream.close()

    def _keep(self, line: bytes) -> None:
        try:
            self.lines.append(json.loads(line))
        except ValueError:
            self.plain.append(line)

    def wait_for(self, event: str, count: int = 1, **facts: object) -> dict[str, Any]:
        """Return the line of the `count`th event of this kind, once it is logged."""
        wanted = {"event": event, **facts}
        found: list[dict[str, Any]] = []
        looked_at = 0

        def is_there() -> bool:
            nonlocal looked_at
            while looked_at < len(self.lines) and len(found) < count:
                line = self.lines[looked_at]
                looked_at += 1
                if all(line.get(name) == value for name, value in wanted.items()):
                    found.append(line)
            return len(found) == count

        with self._news:
            assert self._news.wait_for(is_there, PATIENCE_SECONDS), (wanted, self.lines[-9:], self.plain)
        return found[-1]

    def join(self) -> None:
        """Wait for the end of the stream."""
        self._thread.join()


class Server:
    """A running webhook."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.reviews = Log(process.stdout)
        self.log = Log(process.stderr)
        serving = self.log.wait_for("serving")
        self.address = serving["reviews"]
        self.host, _, port = self.address.rpartition(":")
        self.port = int(port)
        self.url = f"https://{self.address}"
        self.status_url = f"http://{serving['metrics']}"

    def terminate(self) -> int:
        """Ask the process to stop and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def resident_megabytes(self) -> float:
        """Return the resident memory of the process."""
        return self._megabytes("VmRSS:")

    def peak_megabytes(self) -> float:
        """Return the most resident memory that the process had since `forget_peak`."""
        return self._megabytes("VmHWM:")

    def forget_peak(self) -> None:
        """Begin to look for a peak."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def page_faults(self) -> int:
        """Return the number of the process's page faults."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[7])

    def _megabytes(self, name: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(name)[1].split()[0]) / 1024

    def wait_for_connections(self, count: int) -> None:
        """Ask for the number of connections until it is `count`; a peer knows of its own end first."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := self.metric("corepin_webhook_connections")) != count:
            assert time.monotonic() < deadline, found

    def wait_until_read(self) -> None:
        """Wait until nothing that was sent to the reviews' port waits in the kernel."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while waiting := self._unread():
            assert time.monotonic() < deadline, waiting

    def _unread(self) -> list[str]:
        """Return the connections of /proc/net/tcp at the port, from either side, whose queues hold something."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port = f":{self.port:04X}"
        return [row[4] for row in rows if row[4] != EMPTY and port in row[1] + row[2]]

    def metric(self, sample: str) -> float:
        """Return one sample of /metrics."""
        lines = plain_http.get(f"{self.status_url}/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample))


@contextlib.contextmanager
def serving(*flags: object, **limits: float) -> Iterator[Server]:
    """Run a webhook on free ports until the block ends."""
    command = [sys.executable, "-W", "error", "-m", "tests.webhook.fast_server", json.dumps(limits)]
    ports = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, *ports, *map(str, flags)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            server = Server(process)
            yield server
        finally:
            process.kill()
            process.wait()
        server.log.join()
        server.reviews.join()


def trusting(*cas: trustme.CA) -> ssl.SSLContext:
    """Return a client's context that trusts these CAs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for ca in cas:
        ca.configure_trust(context)
    return context
