"""requirements.unused: no module imports the parts that image and plugin do not contain."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.release.plugin import unused
from tests.image.lock import pins

SITE = Path(str(distribution("kubernetes").locate_file("")))
_OWNERS = packages_distributions()  # cached, because it reads the metadata of every installed distribution
MODULES = {
    name: [module for module, owners in _OWNERS.items() if name in {*map(canonicalize_name, owners)}]
    for name in {*pins("requirements.lock"), *(it for it in unused() if "/" not in it)}
}


def standard() -> list[str]:
    """Return the standard library modules that scripts/image-root removes, without suffixes."""
    text = Path("scripts/image-root").read_text(encoding="utf-8")
    (modules,) = re.findall(r"^ *modules=\(([^)]*)\)", text, re.MULTILINE)
    (extensions,) = re.findall(r"^ *extensions=\(([^)]*)\)", text, re.MULTILINE)
    return [name.removesuffix(".py").removesuffix(".*") for name in f"{modules} {extensions}".split()]


@pytest.fixture(scope="module")
def imported() -> frozenset[str]:
    """Return every module that corepin's imports load when the removed modules are blocked."""
    left_out = [module for it in unused() for module in MODULES.get(it, [it])]
    command = (sys.executable, "-m", "tests.image.imports", *left_out, *standard())
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return frozenset(done.stdout.split())


def test_every_import_works_without_them(imported: frozenset[str]) -> None:
    """No import of corepin, at module level or inside a function, needs a removed module."""
    assert {
        "kubernetes.config.kube_config",
        "webhook.server.process",
        "agent.main",
        "certs.cluster",
    } <= imported
    paths = {name.replace(".", "/") for name in imported}
    assert not [path for path in paths for it in unused() if fnmatch(path, it)]


def test_every_locked_distribution_is_used(imported: frozenset[str]) -> None:
    """Every locked distribution has an imported module; otherwise it belongs into requirements.unused."""
    names = {name.partition(".")[0] for name in imported} | {
        ".".join(name.split(".")[:2]) for name in imported
    }
    assert [it for it in pins("requirements.lock") if not names & set(MODULES[canonicalize_name(it)])] == []


def test_every_part_of_kubernetes_is_used(imported: frozenset[str]) -> None:
    """Every package folder of `kubernetes` that is not removed is imported."""
    left_out = unused()
    folders = {path.parent.relative_to(SITE).as_posix() for path in SITE.glob("kubernetes/**/__init__.py")}
    kept = {
        it
        for it in folders
        if not any(fnmatch(f"{it}/", pattern) or fnmatch(it, f"{pattern}*") for pattern in left_out)
    }
    assert {it for it in kept if it.replace("/", ".") not in imported} == set()


def test_distributions_left_out_are_required_by_others() -> None:
    """Each distribution in requirements.unused is required by another one, and none is locked."""
    named = {it for it in unused() if "/" not in it}
    required = {
        canonicalize_name(Requirement(text).name)
        for it in {*pins("requirements.lock"), *named}
        for text in distribution(it).requires or ()
    }
    assert named <= required
    assert not named & pins("requirements.lock").keys()


def test_paths_left_out_are_there() -> None:
    """Each path in requirements.unused exists in the installed packages."""
    assert [it for it in unused() if "/" in it and not list(SITE.glob(it))] == []
