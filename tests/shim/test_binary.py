"""The built binary: small, static, for two architectures."""

from __future__ import annotations

import platform
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.environments.node.containerd import install_packages
from tests.shim.agent import fake_agent

if TYPE_CHECKING:
    from collections.abc import Iterator

EMULATOR: Final = "qemu-aarch64-static"
MEGABYTE: Final = 1_000_000
DYNAMIC, INTERPRETER, RELRO, STACK = 2, 3, 0x6474E552, 0x6474E551  # types of program headers
EXECUTABLE, WRITABLE = 1, 2
SOURCES = sorted(Path("shim").glob("*.[ch]"))


@pytest.fixture(scope="module")
def arm64(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command for arm64, and the emulator that runs it."""
    install_packages({"qemu-user-static": EMULATOR})
    path = tmp_path_factory.mktemp("shim") / "cmk"
    subprocess.run(["scripts/shim", str(path), "arm64"], check=True, capture_output=True)
    return path


@pytest.fixture(params=["here", pytest.param("arm64", marks=pytest.mark.runtime)])
def built(request: pytest.FixtureRequest, command: Path) -> Path:
    """Return the commands for this machine and for arm64."""
    return command if request.param == "here" else request.getfixturevalue("arm64")


def program_headers(program: bytes) -> Iterator[tuple[int, int]]:
    """Yield type and flags of each program header of a 64-bit ELF file."""
    assert program[:6] == b"\x7fELF\x02\x01"
    start, size, count = struct.unpack_from("<32xQ14xHH", program)
    for number in range(count):
        yield struct.unpack_from("<II", program, start + number * size)


def test_it_is_small(built: Path) -> None:
    """The binary is below a megabyte; CMK's had 36."""
    assert built.stat().st_size < MEGABYTE


def test_it_needs_no_loader_and_no_library(built: Path) -> None:
    """The binary has no dynamic section, so that it runs in an empty image."""
    assert {kind for kind, _ in program_headers(built.read_bytes())}.isdisjoint({DYNAMIC, INTERPRETER})


def test_no_memory_is_both_written_and_executed(built: Path) -> None:
    """No segment is writable and executable, the stack is not executable, and RELRO is set."""
    headers = dict(program_headers(built.read_bytes()))
    assert RELRO in headers
    assert not headers[STACK] & EXECUTABLE
    both = EXECUTABLE | WRITABLE
    assert not any(flags & both == both for _, flags in program_headers(built.read_bytes()))


@pytest.mark.runtime
@pytest.mark.skipif(platform.machine() == "aarch64", reason="this is such a machine")
def test_it_runs_on_arm64(arm64: Path) -> None:
    """Under an emulator the arm64 binary sends its request and executes the command."""
    emulated = ["sh", "-c", f'exec {EMULATOR} "$@"', "sh"]
    with fake_agent(arm64) as agent:
        words = ["isolate", "--pool=exclusive", "printenv", "--", "CMK_CPUS_ASSIGNED"]
        done = subprocess.run(
            [*emulated, str(agent.command), *words], capture_output=True, text=True, check=False, timeout=60
        )

        assert (done.returncode, done.stdout, done.stderr) == (0, "1,3\n", "")
        assert agent.asked[0].text == "cmk 1 isolate\npool=exclusive\nsocket=-1\n\n"


def test_building_again_does_nothing(command: Path, tmp_path: Path) -> None:
    """Built programs are cached outside the checkout, and an unchanged file is not written again."""
    copy = tmp_path / "cmk"
    subprocess.run(["scripts/shim", str(copy)], check=True)
    before = copy.stat().st_ino
    subprocess.run(["scripts/shim", str(copy)], check=True)

    assert copy.read_bytes() == command.read_bytes()
    assert copy.stat().st_ino == before


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_sources_are_small(path: Path) -> None:
    """No file of the command has more than 200 lines, no function more than 40, no line more than 120 columns."""
    text = path.read_text()
    assert len(text.splitlines()) <= 200
    assert max(map(len, text.splitlines())) <= 120
    bodies = re.findall(r"^\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    assert all(body.count("\n") <= 40 for body in bodies)


def test_every_file_is_described() -> None:
    """shim/README.md has a line for each source file."""
    listed = re.findall(r"^\| `(\w+\.c)` \|", Path("shim/README.md").read_text(), re.MULTILINE)

    assert sorted(listed) == [path.name for path in SOURCES if path.suffix == ".c"]


def test_packages_are_installed_one_at_a_time_of_all_processes(tmp_path: Path) -> None:
    """`scripts/shim` holds the lock of `tests.debian` while it calls apt-get, which fails while another one works."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "cat", "dirname", "env", "flock", "id", "mkdir", "sed", "sha256sum", "uname"):
        (programs / name).symlink_to(shutil.which(name) or name)
    lock = tmp_path / "corepin/debian/.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    apt = programs / "apt-get"
    apt.write_text(
        f'#!/bin/bash\nflock --nonblock "{lock}" bash -c : && echo free || echo "$2" >>"{tmp_path}/log"\n'
    )
    apt.chmod(0o755)
    environment = {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run(["scripts/shim", str(tmp_path / "cmk")], env=environment, check=False, capture_output=True)

    assert (tmp_path / "log").read_text().split() == ["update", "install"]
