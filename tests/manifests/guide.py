"""The operator guide's text, and a shell that runs its commands."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import blocks as blocks_of
from tests.docs.blocks import chapter
from tests.environments.server.apiserver import ApiServer
from tests.environments.server.catalog import HELM
from tests.environments.server.start import require

GUIDE = Path("docs/operator-guide.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return one section of the guide."""
    return chapter(GUIDE, title)


def blocks(language: str, text: str = GUIDE) -> list[str]:
    """Return the code blocks in a language."""
    return blocks_of(text, language)


@dataclass(frozen=True, slots=True)
class Shell:
    """Working folder and environment of the guide's commands."""

    folder: Path
    env: dict[str, str]

    def run(self, block: str) -> str:
        """Run one block as a script that stops at its first error, and return what it printed."""
        command = ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def shell(api: ApiServer, folder: Path) -> Shell:
    """Return a shell in a folder with manifests and examples, whose kubectl and helm use an API server."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "kubectl").symlink_to(api.binaries.kubectl)
    (helm,) = require(HELM)
    (bin_folder / "helm").symlink_to(helm)
    (bin_folder / "corepin").symlink_to(Path(sys.executable).with_name("corepin"))
    for name in ("manifests", "examples"):
        (folder / name).symlink_to(Path(name).absolute())
    path = f"{bin_folder}:{os.environ['PATH']}"
    return Shell(folder, {"PATH": path, "KUBECONFIG": str(api.kubeconfig()), "HOME": str(folder)})
