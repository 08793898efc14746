"""NRI's own runtime side as a process (`tests/environments/server/nri`), driven by the test instead of CRI."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from tests.environments.server.catalog import NRI_RUNTIMES
from tests.environments.server.daemon import dies_with_parent, plain_environment
from tests.environments.server.start import require
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

NAME = "test-runtime"
_numbers = count(1)


class Failed(Exception):
    """NRI answered with an error."""


@dataclass
class NRIRuntime:
    """A runtime without real containers: the test sets its pods and containers, and sends its events."""

    version: str
    directory: Path
    timeout: str = "10s"  # containerd waits 2 s for a plugin
    seconds: float = 0.0  # seconds that the last command took, including the plugins' time
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _log_file: Path | None = None

    @property
    def socket(self) -> Path:
        """The socket for plugins."""
        return self.directory / "nri.sock"

    @property
    def has_validators(self) -> bool:
        """Whether this version of NRI lets plugins validate the adjustments of other plugins."""
        return self.version != "0.8"

    def start(self) -> None:
        """Start the process and wait until plugins can connect."""
        [program] = require(NRI_RUNTIMES[self.version])
        self._log_file = self.directory / f"nri-{next(_numbers)}.log"
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                dies_with_parent([str(program), str(self.socket), self.timeout]),
                env=plain_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._answer()

    def kill(self) -> None:
        """Kill the process, as if the runtime had crashed."""
        if self._process:
            with self._process as process:
                process.kill()
            self._process = None

    @property
    def log(self) -> str:
        """NRI's log since the start."""
        assert self._log_file
        return self._log_file.read_text(errors="replace")

    def do(self, command: str, **request: Any) -> Any:
        """Run one command and return its reply, with NRI's field names; raise Failed with NRI's message."""
        assert self._process
        assert self._process.stdin
        line = json.dumps({"do": command, "request": request})
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.seconds = answer["nanos"] / 1e9
        if "error" in answer:
            raise Failed(answer["error"])
        return answer.get("reply")

    def hold(self, pods: Sequence[Any], containers: Sequence[Any]) -> None:
        """Set the pods and containers that the next plugin gets in Synchronize."""
        self.do("Hold", pods=pods, containers=containers)

    def synchronized(self, times: int = 1) -> Any:
        """Wait until a plugin was synchronized this many times; return its last answer."""
        answered = until("a plugin came", lambda: self.do("Synchronized")[times - 1 :])[-1]
        until("it is asked from now on", lambda: self.joined() >= times)
        return answered

    def joined(self, plugin: str = "") -> int:
        """Return how often this plugin, or any, was synchronized and became ready for calls."""
        return self.log.count(f'{plugin}\\" connected and synchronized')

    def _answer(self) -> Any:
        assert self._process
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"{NAME} {self.version} ended:\n{self.log[-3000:]}"
        return json.loads(line)


def pod(uid: str, **annotations: str) -> dict[str, Any]:
    """Return a sandbox in NRI's format."""
    return {
        "id": f"sandbox-{uid}",
        "uid": uid,
        "name": uid,
        "namespace": "default",
        "annotations": annotations,
        "linux": {"cgroup_parent": f"/kubepods/pod{uid}"},
    }


def container(uid: str, name: str = "main", **fields: Any) -> dict[str, Any]:
    """Return a container of a pod in NRI's format."""
    key = f"{uid}-{name}"
    cpu = {"shares": {"value": "1024"}, "quota": {"value": "100000"}, "period": {"value": "100000"}}
    linux = {"resources": {"cpu": cpu}, "cgroups_path": f"/kubepods/pod{uid}/{key}"}
    return {"id": key, "pod_sandbox_id": f"sandbox-{uid}", "name": name, "linux": linux, **fields}


@contextmanager
def running_nri(version: str, directory: Path, timeout: str = "10s") -> Iterator[NRIRuntime]:
    """Run NRI's runtime side until the block ends."""
    runtime = NRIRuntime(version, directory, timeout)
    try:
        runtime.start()
        yield runtime
    finally:
        runtime.kill()
