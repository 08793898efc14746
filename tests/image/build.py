"""Build of the image from the Dockerfile with buildah, cached by the content of its inputs outside the checkout.

Nothing is pulled: debootstrap creates the base instead of the image in pins.toml, and SNAPSHOT is empty.
Debian packages are not pinned, because a mirror keeps only one version, and so a point release cannot break the
build. All other inputs are part of the cache key.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.environments.node.containerd import install_packages
from tests.environments.server.build import cache_folder, locked
from tests.image.pip_settings import write_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NAME: Final = "docker.io/library/corepin:0.1.0"  # full name of `image: corepin:0.1.0` in the manifests
SUITE: Final = "bookworm"
BASE: Final = "docker.io/library/debian:bookworm-slim"  # name of the base image
PACKAGES: Final = {"buildah": "buildah", "debootstrap": "debootstrap"}
_KEPT: Final = 3  # cached images, 90 MB each: this checkout's, and those that other checkouts may be using
# Files of apt that the base does not contain, as in Debian's own image.
_LEFT_BY_APT: Final = ("./var/lib/apt/lists/*", "./var/cache/apt/archives/*.deb", "./var/log/bootstrap.log")


class BuildFailed(Exception):
    """The image cannot be built; the message has the end of the builder's output."""


@dataclass(frozen=True)
class Context:
    """The build context: a copy, so that it does not change during the build."""

    folder: Path

    @cached_property
    def digest(self) -> str:
        """Return a short hash of names, modes and contents."""
        content = hashlib.sha256()
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            head = f"{path.relative_to(self.folder)} {path.stat().st_mode:o} {path.stat().st_size}"
            content.update(head.encode() + b"\0" + path.read_bytes())
        return content.hexdigest()[:12]


def build_image(root: Path | None = None) -> Path:
    """Return the Docker archive of a checkout's image, by default this one's; build it if it is not cached."""
    install_packages(PACKAGES)
    cache = _cache()
    with copied_context(root or Path.cwd()) as context, locked(cache, sys.stderr):
        base, image = _places(cache, context)
        if not image.is_file():
            if not base.is_file():
                _keep(base, _make_base)
            _keep(image, lambda file, work: _make_image(context, base, file, work))
        os.utime(image.parent)
        _forget_unused(cache)
        return image


def forget_image(root: Path) -> None:
    """Delete the cached image of a checkout, but not the base."""
    with copied_context(root) as context, locked(_cache(), sys.stderr):
        _, image = _places(_cache(), context)
        shutil.rmtree(image.parent, ignore_errors=True)


def _cache() -> Path:
    return cache_folder().with_name("images")


def _places(cache: Path, context: Context) -> tuple[Path, Path]:
    """Return the paths of base and image of a context in the cache."""
    recipe = f"{SUITE} {BASE} {_LEFT_BY_APT}"
    base = cache / f"base-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}" / "base.tar"
    return base, cache / f"image-{base.parent.name[5:]}-{context.digest}" / "image.tar"


@contextmanager
def copied_context(root: Path) -> Iterator[Context]:
    """Copy the files that .dockerignore allows, and the Dockerfile."""
    with tempfile.TemporaryDirectory(prefix="corepin-context-") as folder:
        for line in ("!Dockerfile", "!.dockerignore", *(root / ".dockerignore").read_text().splitlines()):
            if line.startswith("!"):
                _copy(root, Path(folder), line[1:].removesuffix("/**"))
        yield Context(Path(folder))


def _copy(root: Path, folder: Path, name: str) -> None:
    if (root / name).is_dir():
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy2(root / name, folder / name)


def _keep(file: Path, make: Callable[[Path, Path], None]) -> None:
    """Create a file under a temporary name, and rename it when it is complete."""
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=file.parents[1]))
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="corepin-image-") as work:
            make(partial / file.name, Path(work))
        shutil.rmtree(file.parent, ignore_errors=True)
        partial.rename(file.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    seconds = time.monotonic() - started
    sys.stderr.write(f"{file.parent.name}: made in {seconds:.0f} s, {file.stat().st_size / 1e6:.0f} MB\n")


def _make_base(file: Path, work: Path) -> None:
    """Create the base image with debootstrap's variant minbase, like Debian's own."""
    root = work / "base"
    _run(("debootstrap", "--variant=minbase", SUITE, str(root), *_mirror()))
    _run(("tar", "-C", str(root), "-cf", str(file), *(f"--exclude={it}" for it in _LEFT_BY_APT), "."))


def _mirror() -> list[str]:
    """Return the mirror of this machine's apt configuration; empty for debootstrap's default."""
    command = ("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages")
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    mirrors = [line.split()[0] for line in text.splitlines() if line.split()[1:] == [SUITE]]
    return mirrors[:1]


def _make_image(context: Context, base: Path, file: Path, work: Path) -> None:
    """Build the image in a temporary container storage."""
    container = _buildah(work, "from", "scratch").strip()
    _buildah(work, "add", "--quiet", container, str(base), "/")
    _buildah(work, "commit", "--quiet", "--rm", container, BASE)
    home = write_home(work / "home")
    # Mounted over an existing folder, because a new mount point would be left in a layer.
    mount = f"--volume={home}:/root:ro"
    pins = (f"--build-arg=BASE={BASE}", "--build-arg=SNAPSHOT=")
    flags = ("--pull-never", "--format=docker", *pins, mount, f"--tag={NAME}")
    _buildah(work, "bud", *flags, str(context.folder))
    _buildah(work, "push", "--quiet", NAME, f"docker-archive:{file}:{NAME}")


def _buildah(work: Path, *arguments: str) -> str:
    places = (f"--root={work / 'storage'}", f"--runroot={work / 'run'}", "--storage-driver=vfs")
    return _run(("buildah", *places, *arguments))


def _run(command: Iterable[str]) -> str:
    """Run a command and return its output."""
    command = tuple(command)
    env = os.environ | {"BUILDAH_ISOLATION": "chroot", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = "\n".join(f"{done.stdout}\n{done.stderr}".splitlines()[-30:])
        raise BuildFailed(f"{' '.join(command[:2])} failed (exit status {done.returncode}):\n{text}")
    return done.stdout


def _forget_unused(cache: Path) -> None:
    """Remove the images of older checkouts."""
    for image in sorted(cache.glob("image-*"), key=lambda it: it.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(image, ignore_errors=True)


if __name__ == "__main__":
    build_image()
