"""The code blocks of a page, and how its shell blocks are run as a reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.servers.apiserver import ApiServer

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, *languages: str) -> list[str]:
    """Return the code blocks of these languages, in their order."""
    return [body for language, body in FENCE.findall(text) if language in languages]


def chapter(page: str, title: str) -> str:
    """Return one chapter of a page."""
    assert f"\n## {title}\n" in page
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


class Shell:
    """A folder with what the pages use (`kubectl`, `corepin`, manifests, examples), and an API server behind kubectl."""

    def __init__(self, folder: Path, api: ApiServer) -> None:
        self._folder = folder
        programs = folder / "bin"
        programs.mkdir()
        (programs / "kubectl").symlink_to(api.binaries.kubectl)
        (programs / "corepin").symlink_to(Path(sys.executable).with_name("corepin"))
        for name in ("manifests", "examples"):
            (folder / name).symlink_to(Path(name).absolute())
        self._env = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "KUBECONFIG": str(api.kubeconfig()),
            "HOME": str(folder),
        }

    def write(self, name: str, text: str) -> None:
        """Write a file of the reader's own."""
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, block: str) -> str:
        """Run a block, every command of which must succeed, and return what it printed."""
        command = ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(
            command, cwd=self._folder, env=self._env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout
