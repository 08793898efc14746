"""An agent that serves `cmk isolate`, and pods that can run the command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from demo.agent import LocalAgent
from tests.pods import CORES


def built() -> Path:
    """Build the command into `libexec` and return its path."""
    path = Path(sys.prefix, "libexec", "cmk")
    subprocess.run(["scripts/shim", str(path)], check=True)
    return path


class CMKAgent(LocalAgent):
    """An agent that serves `cmk isolate`."""

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
        """Start a pod that runs a script, with `cmk` on its PATH."""
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
        """Return the lines that a pod wrote."""
        path = self.logs / f"default_{name}_app.log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def until_written(self, name: str, line: str) -> list[str]:
        """Wait until a pod wrote a line with the text; return all its lines."""
        self.until(f"{name} writes {line}", lambda: any(line in each for each in self.lines(name)))
        return self.lines(name)

    @property
    def tasks(self) -> dict[int, tuple[str, str]]:
        """The pool and CPUs of each wrapper in the agent's state, by pid."""
        return {task["pid"]: (task["pool"], task["cpus"]) for task in self.state().get("tasks", ())}
