"""Objects that `kubectl kustomize` renders from the folders of manifests/."""

from __future__ import annotations

import pickle
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from scripts.chart_values import BASE, OVERLAYS
from tests.environments.server.start import require_servers

ROOT = Path("manifests")
# Overlays that install the whole of corepin; the base comes first.
INSTALLS = (BASE, *sorted(OVERLAYS - {BASE, "monitoring"}))
ROTATING = tuple(name for name in INSTALLS if name not in {"cert-manager", "own-certificate"})
SYSTEM, AGENT = "corepin-system", "corepin-agent"
Object = dict[str, Any]


def text_of(folder: Path) -> str:
    """Return kubectl's rendering of a folder."""
    command = [str(require_servers().kubectl), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # warnings of deprecated fields
    return done.stdout


@cache
def text(name: str) -> str:
    """Return the rendering of an overlay."""
    return text_of(ROOT / name)


def renamed(name: str, system: str, agent: str, folder: Path) -> str:
    """Return the rendering of an overlay with other namespaces; `folder` gets a copy of the manifests."""
    shutil.copytree(ROOT, folder / "manifests")
    names = folder / "manifests/base/names.yaml"
    changed = names.read_text().replace(f": {SYSTEM}", f": {system}").replace(f": {AGENT}", f": {agent}")
    names.write_text(changed)
    return text_of(folder / "manifests" / name)


def parsed(text: str) -> list[Object]:
    """Return the objects of a rendering, parsed by libyaml, which takes a ninth of the time."""
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


def objects(name: str) -> list[Object]:
    """Return a copy of an overlay's objects."""
    found: list[Object] = pickle.loads(_pickled(name))  # noqa: S301  our own, and quicker than a copy
    return found


@cache
def _pickled(name: str) -> bytes:
    return pickle.dumps(parsed(text(name)))


def manifest(name: str, kind: str, called: str) -> Object:
    """Return the object of a kind and name."""
    (found,) = [it for it in objects(name) if (it["kind"], it["metadata"]["name"]) == (kind, called)]
    return found
