"""An agent of its own that answers `cmk isolate`, and pods in which the real command is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from demo.agent import LocalAgent
from tests.pods import CORES


def built() -> Path:
    """Return the command, built where `scripts/setup` puts it."""
    path = Path(sys.prefix, "libexec", "cmk")
    subprocess.run(["scripts/shim", str(path)], check=True)
    return path


class CMKAgent(LocalAgent):
    """An agent that answers `cmk isolate`."""

    def __init__(self, directory: Path, command: Path | None = None) -> None:
        super().__init__(directory)
        self.install = directory / "opt" / "bin"
        self.logs = directory / "state" / "logs"
        self.install.mkdir(parents=True)
        shutil.copy(command or built(), self.install / "cmk")

    @property
    def command(self) -> tuple[str, ...]:
        """The command line of the agent."""
        return (*super().command, "--cmk-install-dir", str(self.install))

    @property
    def pid(self) -> int:
        """The agent's process."""
        return int((self._state / "lock").read_text(encoding="ascii"))

    def pod(self, name: str, script: str, cores: int = 1) -> None:
        """Start a pod that runs a script, in which `cmk` is the command."""
        amounts = {"cpu": "1"} | ({CORES: str(cores)} if cores else {})
        container: dict[str, Any] = {
            "name": "app",
            "image": "registry.example/app",
            "command": ["sh", "-c", f"PATH={self.install}:$PATH; {script}"],
            "env": [{"name": "CMK_NUM_CORES", "value": str(cores or 1)}],
        }
        if cores:
            container["resources"] = {"requests": amounts, "limits": amounts}
        self.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {"containers": [container], "restartPolicy": "Never"},
            }
        )

    def lines(self, name: str) -> list[str]:
        """Return what a pod wrote."""
        path = self.logs / f"default_{name}_app.log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def until_written(self, name: str, line: str) -> list[str]:
        """Wait until a pod wrote a line that holds a text; return all that it wrote."""
        self.until(f"{name} writes {line}", lambda: any(line in each for each in self.lines(name)))
        return self.lines(name)

    @property
    def tasks(self) -> dict[int, tuple[str, str]]:
        """The pool and CPUs of each wrapper that the agent tells of."""
        return {task["pid"]: (task["pool"], task["cpus"]) for task in self.state().get("tasks", ())}
