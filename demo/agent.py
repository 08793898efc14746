"""The demo's agent process, with its folder of manifests, its socket, and its containers' processes."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from agent.local.affinity import MARK
from agent.local.environ import environments, variable
from demo.webhook import COREPIN, DemoFailed, corepin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_SECONDS: Final = 180.0  # 1 s on an idle machine; a flush of a busy disk takes half a minute
LOOK_SECONDS: Final = 0.002
CGROUPS: Final = (Path("/sys/fs/cgroup/cpuset"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


@dataclass(frozen=True)
class Running:
    """The process of a container, from /proc."""

    pid: int
    cpus: str  # Cpus_allowed_list


class LocalAgent:
    """`corepin agent --runtime local` below one directory."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._options = options  # further flags
        self._pods = directory / "pods"
        self._state = directory / "state"
        self._log = directory / "agent.log"
        self._log.touch()
        self._socket = directory / "agent.sock"
        self._root = "none-seen"  # the root cgroup of its containers

    @property
    def command(self) -> tuple[str, ...]:
        """The command line of the agent."""
        return (
            *(
                COREPIN,
                "agent",
                "--node",
                "this-machine",
                "--runtime",
                "local",
                "--pods-dir",
                str(self._pods),
            ),
            *("--state-dir", str(self._state), "--socket", str(self._socket), "--metrics-listen", "off"),
            *("--kubelet-state", str(self._state / "no-kubelet")),
            *self._options,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the agent until the block ends; raise DemoFailed if processes or cgroups of its pods remain."""
        self._pods.mkdir(exist_ok=True)
        with (
            self._log.open("wb") as sink,
            subprocess.Popen(self.command, stderr=sink, stdout=sink) as process,
        ):
            try:
                self.until("it answers", lambda: bool(self.state()["podsComplete"]))
                yield
            finally:
                self._end_pods()
                process.terminate()
        if process.returncode != 0:
            raise DemoFailed(f"the agent ended with {process.returncode}:\n{self._log.read_text()}")
        if self.left():
            raise DemoFailed(f"the agent left behind: {', '.join(self.left())}")

    def _end_pods(self) -> None:
        """Delete all manifests and wait until all pods have ended."""
        for path in self._pods.iterdir():
            path.unlink()
        with suppress(DemoFailed):  # the earlier failure is the one to report
            self.until("its pods end", lambda: not self.state()["pods"] and not self.left())

    def left(self) -> list[str]:
        """Return the remaining processes and cgroups."""
        pids = [str(pid) for pid, home in _homes() if home.split("/")[1] == self._root]
        return pids + [str(folder) for root in CGROUPS if (folder := root / self._root).exists()]

    def put(self, pod: dict[str, Any]) -> None:
        """Write or replace a pod's manifest atomically."""
        path = self._pods / f"{pod['metadata']['name']}.yaml"
        beside = path.with_name(f".{path.name}")
        beside.write_text(yaml.safe_dump(pod, sort_keys=False), encoding="utf-8")
        beside.replace(path)

    def state(self) -> dict[str, Any]:
        """Return the agent's state, empty while it does not answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self._socket))
                content = b"".join(iter(lambda: connection.recv(2**16), b""))
            except OSError:
                content = b""
        state: dict[str, Any] = (
            json.loads(content) if content.strip() else {"podsComplete": False, "pods": []}
        )
        return state

    def container(self, pod: str) -> dict[str, Any]:
        """Return a pod's container in the agent's state; empty if absent."""
        found = [
            container
            for shown in self.state()["pods"]
            if shown["name"] == pod
            for container in shown["containers"].values()
        ]
        return dict(found[0]) if found else {}

    def seen(self, pod: str) -> Running | None:
        """Return the process of a pod's container from /proc."""
        uid = next((shown["uid"] for shown in self.state()["pods"] if shown["name"] == pod), None)
        for pid, home in _homes():
            _, root, of_pod, _ = home.split("/")
            if of_pod == uid:
                self._root = root
                return Running(pid, allowed(pid))
        return None

    def first_words(self, pod: str) -> str:
        """Return the first line that a pod's container wrote."""
        written = (self._state / "logs" / f"demo_{pod}_app.log").read_text(encoding="utf-8")
        return written.partition("\n")[0]

    def map(self) -> None:
        """Print the machine as `corepin map` does."""
        corepin("map", "--socket", str(self._socket))

    def until(self, what: str, is_so: Callable[[], bool]) -> float:
        """Wait until a condition is true; return the seconds. Raises DemoFailed with the agent's log."""
        began = time.monotonic()
        while not is_so():
            if time.monotonic() - began > WAIT_SECONDS:
                raise DemoFailed(
                    f"the agent: {what}: not within {WAIT_SECONDS:.0f} s:\n{self._log.read_text()}"
                )
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - began


def allowed(pid: int) -> str:
    """Return the affinity of a process."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("Cpus_allowed_list:"):
                return line.split()[1]
    return "?"


def _homes() -> list[tuple[int, str]]:
    """Return every process of a local runtime, with its cgroup: /ROOT/POD_UID/CONTAINER."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    marked = ((pid, variable(environment, MARK)) for pid, environment in environments(pids))
    return sorted((pid, home) for pid, home in marked if home)
