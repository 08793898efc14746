"""The image and the locks: one program everywhere, and nothing in the last stage that does not belong there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.image.lock import pins
from tests.layout import PACKAGES

LAST_STAGE = Path("Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
FIRST_STAGE = Path("Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[0]


def project() -> Any:
    """Return pyproject.toml."""
    return tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-build.lock"])
def test_one_version_everywhere(lock: str) -> None:
    """The versions in the image's locks are those of the development lock, so that the tested ones ship."""
    chosen, tested = pins(lock), pins("requirements-dev.lock")

    assert chosen
    assert chosen.items() <= tested.items()


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-build.lock", "requirements-dev.lock"])
def test_every_pin_has_a_hash(lock: str) -> None:
    """No line of a lock could be met by another file than the one that was locked."""
    entries = re.split(r"\n(?=[a-z])", Path(lock).read_text(encoding="utf-8").strip())

    assert len(entries) >= len(pins(lock)) > 0
    assert all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize("file", ["scripts/setup", "Dockerfile", "scripts/release/plugin.py"])
def test_nothing_but_the_lock_is_installed(file: str) -> None:
    """A release that appears on the index after the lock was made changes nothing and stops nothing."""
    hashed = [
        line for line in Path(file).read_text(encoding="utf-8").splitlines() if "--require-hashes" in line
    ]

    assert hashed
    assert all("--no-deps" in line for line in hashed)


def test_every_dependency_is_locked() -> None:
    """A dependency added to the project without a new lock is found here, not on an operator's node."""
    wanted = {re.split(r"[\[<>=!~; ]", line)[0] for line in project()["project"]["dependencies"]}

    assert wanted <= pins("requirements.lock").keys()


def test_image_holds_every_package() -> None:
    """The Dockerfile copies every package of the wheel, and .dockerignore excludes none of them."""
    packages = set(project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    ignored = Path(".dockerignore").read_text(encoding="utf-8").splitlines()

    assert packages == PACKAGES
    for package in packages:
        assert f"COPY {package} {package}\n" in FIRST_STAGE
        assert f"!{package}/**" in ignored


def test_everything_copied_is_let_through() -> None:
    """No COPY names a file that .dockerignore keeps away."""
    ignored = Path(".dockerignore").read_text(encoding="utf-8").splitlines()
    files = re.findall(
        r"\S+",
        " ".join(re.findall(r"^COPY (requirements\S* .*|pyproject\S* .*) \./", FIRST_STAGE, re.MULTILINE)),
    )

    assert "requirements.lock" in files
    assert all(f"!{file}" in ignored and Path(file).is_file() for file in files)


def test_last_stage_runs_as_a_number_and_has_no_tools() -> None:
    """A numeric user lets Kubernetes check runAsNonRoot; pip and compilers stay in the first stage."""
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", LAST_STAGE, re.MULTILINE)
    assert 'ENTRYPOINT ["corepin"]' in LAST_STAGE
    assert not re.search(r"\bpip\b|venv|gcc|build-essential", LAST_STAGE)
    assert "--without-pip /opt/corepin" in FIRST_STAGE
