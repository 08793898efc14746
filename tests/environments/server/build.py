"""Build of servers with the Go tool chain into a cache outside the checkout, each version once.

A build has a temporary name until it is complete, so that a program under its final name is always complete;
a lock lets one build run at a time.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.environments.server.catalog import KUBERNETES, OLDEST, SERVERS, CProgram, Module, Server
from tests.environments.server.daemon import dies_with_parent

ASSETS = "KUBEBUILDER_ASSETS"
_PARTIAL = ".partial-"
_SETTINGS = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}


class GoMissing(Exception):
    """No Go tool chain here can build the servers."""


class BuildFailed(Exception):
    """`go build` failed; the message holds the end of its output."""


@dataclass(frozen=True)
class Go:
    """An installed Go tool chain."""

    command: str
    version: tuple[int, ...]


def cache_folder() -> Path:
    """Return the folder of built servers: below COREPIN_CACHE, else below the user's cache folder."""
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("COREPIN_CACHE") or user_cache / "corepin") / "servers"


def find(server: Server, cache: Path) -> Path | None:
    """Return a built program: from KUBEBUILDER_ASSETS (newest version only) or from the cache; else None."""
    for place in (*_assets(server), _built_path(server, cache)):
        if place.is_file():
            return place
    return None


def find_go(modules: Iterable[Module]) -> Go:
    """Return the Go on PATH if it is new enough for all `modules`, else raise GoMissing."""
    needed = max(module.go_version for module in modules)
    wanted = f"Go {_dotted(needed)} or newer (https://go.dev/dl)"
    command = shutil.which("go")
    if command is None:
        raise GoMissing(f"the test servers are built by {wanted}, and there is no `go` on PATH")
    version = _version_of(command)
    if version < needed:
        raise GoMissing(f"the test servers are built by {wanted}; {command} is Go {_dotted(version)}")
    return Go(command, version)


def build_missing(out: TextIO, servers: Iterable[Server] = SERVERS) -> None:
    """Build the missing ones of `servers`, with one line on `out` for each."""
    cache = cache_folder()
    missing = [server for server in servers if find(server, cache) is None]
    if not missing:
        return
    go = find_go(server.module for server in missing)
    with locked(cache, out):
        for server in missing:
            if find(server, cache) is None:  # no other process built it while this one waited for the lock
                build(server, cache, go, out)


def build(server: Server, cache: Path, go: Go, out: TextIO) -> Path:
    """Build one server into the cache and return its path; the caller holds the lock."""
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=cache))
    started = time.monotonic()
    try:
        _run_go(server, go, partial, out)
        path = _built_path(server, cache)
        partial.chmod(0o755)
        shutil.rmtree(path.parent, ignore_errors=True)  # exists only if its program was deleted
        partial.rename(path.parent)
    except BuildFailed:
        _show(out, server, started, "failed", "\n")
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _show(out, server, started, f"{path.stat().st_size / 1e6:.0f} MB", "\n")
    return path


def _assets(server: Server) -> Iterator[Path]:
    """Yield the path of `server` in KUBEBUILDER_ASSETS, except for the oldest Kubernetes version."""
    assets = os.environ.get(ASSETS)
    if assets and server.module != KUBERNETES[OLDEST]:
        yield Path(assets) / server.name


def _built_path(server: Server, cache: Path) -> Path:
    return cache / server.cache_key / server.name


def _run_go(server: Server, go: Go, partial: Path, out: TextIO) -> None:
    """Run `go build`, or the C compiler, with a progress line; its output goes to a file."""
    command = _command(server, go, partial / server.name)
    log_file = partial / "build.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            dies_with_parent(command),
            cwd=server.module.folder,
            env=os.environ | _SETTINGS,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(process, server, out)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        tail = "\n".join(log_file.read_text(errors="replace").splitlines()[-20:])
        raise BuildFailed(f"building {server.label} failed (exit status {process.returncode}):\n{tail}")


def _command(server: Server, go: Go, program: Path) -> list[str]:
    """Return the command line that builds a program."""
    if not isinstance(server, CProgram):
        return [go.command, "build", *server.module.build_flags, f"-o={program}", server.package]
    folder = _module_folder(server.module, go) / server.sources
    return ["cc", "-std=c99", "-Os", "-static", "-o", str(program), *map(str, sorted(folder.glob("*.c")))]


def _module_folder(module: Module, go: Go) -> Path:
    """Return the folder of a module's source; download it if missing."""
    listing = [go.command, "mod", "download", "-json", f"{module.path}@v{module.version}"]
    env = os.environ | _SETTINGS
    found = subprocess.run(listing, cwd=module.folder, env=env, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise BuildFailed(f"{module.path} is not there: {found.stderr.strip()[-500:]}")
    return Path(json.loads(found.stdout)["Dir"])


def _wait(process: subprocess.Popen[bytes], server: Server, out: TextIO) -> None:
    started = time.monotonic()
    if not out.isatty():
        _show(out, server, started, "building", "\n")
    while process.poll() is None:
        if out.isatty():
            _show(out, server, started, "building")
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)


def _show(out: TextIO, server: Server, started: float, state: str, end: str = "") -> None:
    """Write the progress line of one server; on a terminal it replaces the previous one."""
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    line = f"{server.label:<28} {minutes:>3} min {seconds:>2} s   {state:<9}{end}"
    out.write(f"\r{line}" if out.isatty() else line)
    out.flush()


@contextmanager
def locked(cache: Path, out: TextIO) -> Iterator[None]:
    """Hold the build lock of `cache`, and remove what killed builds left."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            out.write(f"waiting for another build in {cache}\n")
            out.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in cache.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        yield


def _version_of(command: str) -> tuple[int, ...]:
    """Return the version of a Go tool chain, (0,) if it has none."""
    local = os.environ | {"GOTOOLCHAIN": "local"}
    version = subprocess.run(
        [command, "env", "GOVERSION"], env=local, capture_output=True, text=True, check=False
    )
    found = re.search(r"go(\d+(?:\.\d+)*)", version.stdout)
    return tuple(int(part) for part in found[1].split(".")) if found else (0,)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
