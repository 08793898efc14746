"""Input of a release: the committed files, exported from git, and the time of their commit."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.release.version import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH = "SOURCE_DATE_EPOCH"  # https://reproducible-builds.org/specs/source-date-epoch/


class ReleaseFailed(Exception):
    """A release cannot be built; the message has the reason."""


@dataclass(frozen=True)
class Source:
    """The committed files in a folder of their own."""

    folder: Path
    epoch: int  # latest time of a file in a release

    @property
    def version(self) -> str:
        """The version of the release."""
        return version_of(self.folder)


@contextmanager
def committed(root: Path) -> Iterator[Source]:
    """Export the committed files of a checkout into a folder, which is deleted when the block ends."""
    with tempfile.TemporaryDirectory(prefix="corepin-release-") as work:
        archive, folder = Path(work, "source.tar"), Path(work, "source")
        folder.mkdir()
        _git(root, "-c", "tar.umask=0022", "archive", f"--output={archive}", "HEAD")
        run("tar", "-xf", str(archive), "-C", str(folder))
        yield Source(folder, int(os.environ.get(EPOCH) or _git(root, "log", "-1", "--format=%ct")))


def uncommitted(root: Path) -> list[str]:
    """Return the uncommitted files, which a release does not contain."""
    return _git(root, "status", "--porcelain").splitlines()


def _git(root: Path, *words: str) -> str:
    return run("git", "-C", str(root), *words)


def run(*command: str, folder: Path | None = None, **environment: str) -> str:
    """Run a command and return its output; raise ReleaseFailed with its errors."""
    env = os.environ | environment
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode != 0:
        raise ReleaseFailed(f"{' '.join(command[:4])}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
