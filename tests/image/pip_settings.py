"""This machine's pip settings, such as a CA or an index, for the build; Dockerfile and image do not get them."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_INSIDE: Final = Path("/root")  # mount point of the folder during the build


def write_home(folder: Path) -> Path:
    """Create a home folder with pip's settings and the files that these name."""
    settings = _settings()
    config = folder / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True)
    for key in ("cert", "find-links"):
        if key in settings and Path(settings[key]).exists():
            settings[key] = str(_INSIDE / _copied(Path(settings[key]), folder / key).name)
    lines = [f"{key} = {value}".replace("\n", "\n  ") for key, value in settings.items()]
    config.write_text("\n".join(["[global]", *lines, ""]))
    return folder


def _copied(source: Path, target: Path) -> Path:
    if source.is_dir():
        return Path(shutil.copytree(source, target))
    return Path(shutil.copy2(source, target))


def _settings() -> dict[str, str]:
    """Return this machine's pip settings; environment variables take precedence."""
    command = (sys.executable, "-m", "pip", "config", "list")
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = [line.partition("=") for line in listed.splitlines()]
    ordered = sorted(found, key=lambda it: it[0].startswith(":env:"))
    pairs = [(name.rpartition(".")[2], ast.literal_eval(value)) for name, _, value in ordered]
    return {name: value for name, value in pairs if name not in {"no-cache-dir", "require-virtualenv"}}
