"""Server processes, and checks that they have exited."""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent.kernel.procfs import STATE, stat_fields

START_SECONDS = 180.0  # 3 s on an idle machine; a test run starts five API servers at once
STOP_SECONDS = 60.0  # until SIGKILL; one on an idle machine
TREE = Path(__file__).parents[3]  # the checkout, or a worktree of it, whose tests run
_POLL_SECONDS = 0.05


class DaemonFailed(Exception):
    """A server exited, or was not ready in time; the message has the end of its log."""


class PortTaken(DaemonFailed):
    """Another process took the server's port between its choice and the start."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running server process and the file that its output goes to."""

    name: str
    process: subprocess.Popen[bytes]
    log_file: Path

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Wait until `is_ready`; raise if the process exits first or the time is over."""
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            if self.process.poll() is not None:
                raise self._failure(f"ended with status {self.process.returncode}")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready after {START_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End the process: SIGTERM, then SIGKILL."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Suspend the process until the block ends."""
        self.process.send_signal(signal.SIGSTOP)
        while not self._is_stopped():  # the thread that takes the signal stops the others, once it has a CPU
            time.sleep(0.001)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _is_stopped(self) -> bool:
        """Return whether every thread is stopped, or the process has exited."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        states = [stat_fields(int(task.name))[STATE : STATE + 1] for task in tasks]
        return all(state in ([], ["T"], ["Z"], ["X"]) for state in states)

    def _failure(self, problem: str) -> DaemonFailed:
        tail = "\n".join(self.log_file.read_text(errors="replace").splitlines()[-15:])
        kind = PortTaken if "address already in use" in tail else DaemonFailed
        return kind(f"{self.name} {problem}; the end of {self.log_file}:\n{tail}")


@contextmanager
def running(name: str, command: Sequence[str], log_file: Path) -> Iterator[Daemon]:
    """Run `command` until the block ends; corepin's packages are imported from this tree, not from the environment."""
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            dies_with_parent(command),
            env=plain_environment() | {"PYTHONPATH": str(TREE)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    daemon = Daemon(name, process, log_file)
    try:
        yield daemon
    finally:
        daemon.stop()


def dies_with_parent(command: Sequence[str]) -> list[str]:
    """Return `command` such that the kernel kills it when this process dies.

    `setpriv` (util-linux) sets PR_SET_PDEATHSIG and becomes the command, under the same process id. For the
    kernel the parent is the thread that starts it.
    """
    setpriv = shutil.which("setpriv")
    return [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *command]


def terminated_with_parent(command: list[str]) -> list[str]:
    """Return `command` such that the kernel sends it SIGTERM when this process dies, to end its children."""
    return ["TERM" if part == "KILL" else part for part in dies_with_parent([])] + command


def plain_environment() -> dict[str, str]:
    """Return our environment without variables for servers or clients, such as a proxy or a kubeconfig."""
    kept = ("PATH", "TMPDIR", "GOMAXPROCS", "GOGC")
    return {name: os.environ[name] for name in kept if name in os.environ}


def free_port() -> int:
    """Return a loopback port that is free now, and that the kernel gives to no other socket by itself.

    The kernel takes ports from `ip_local_port_range` for each outgoing connection and each bind(2) to port 0, so
    that a port from there can belong to another test by the time a server binds it. At random, because tests in
    several processes choose at the same time.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, max(first_given, 20_000))  # noqa: S311  no secret
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
