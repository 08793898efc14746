"""A CDI folder that is missing, read-only, full, or has files of our names by other programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.dra.driver_node import Node, on
from tests.pinning.dra.claiming import uid_of

NAME = f"corepin.io-cpu_claim-{uid_of('x')}.json"
SMALL = 4096  # bytes of a file system: one page


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with a file system of one page of its own."""
    folder = tmp_path / "cdi"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root and CAP_SYS_ADMIN")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def make_full(folder: Path) -> None:
    """Fill the file system of a folder."""
    (folder / "gpu.json").write_bytes(b" " * SMALL)


def make_writable_again(folder: Path) -> None:
    """Give the file system of a folder room, and let it be written."""
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    (folder / "gpu.json").unlink(missing_ok=True)


def make_read_only(folder: Path) -> None:
    """Let no file be made in a folder."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [(make_full, "No space left on device"), (make_read_only, "Read-only file system")],
    ids=["full", "read-only"],
)
def test_folder_that_takes_no_file_is_the_reason_of_a_refusal(
    tmp_path: Path, small: Path, spoil: Callable[[Path], None], text: str
) -> None:
    """The claim keeps its CPUs, nothing half written is left, and the next try succeeds once there is room."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        spoil(small)
        error = (await node.prepare("x"))["x"].error
        assert "the CDI file of claim test/x cannot be written" in error
        assert text in error
        assert uid_of("x") in node.ledger.claims
        assert not [path.name for path in small.iterdir() if path.name != "gpu.json"]
        refusals = {"reason": "CDIFile"}
        assert node.registry.get_sample_value("corepin_agent_claim_prepares_refused_total", refusals) == 1
        make_writable_again(small)
        assert len((await node.prepare("x"))["x"].devices) == 1
        assert [path.name for path in small.iterdir()] == [NAME]

    on(tmp_path, use)


def test_claim_is_given_back_only_with_its_file(tmp_path: Path, small: Path) -> None:
    """The kubelet asks again; a file that stayed would name CPUs of the next owner."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        await node.prepare("x")
        make_read_only(small)
        assert "its CDI file cannot be deleted" in await node.unprepare("x")
        make_writable_again(small)
        assert await node.unprepare("x") == ""
        assert not list(small.iterdir())

    on(tmp_path, use)


def test_missing_folder_is_made(tmp_path: Path) -> None:
    """No other driver of devices may have run on the node since it was started."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        assert not node.cdi.exists()
        assert len((await node.prepare("x"))["x"].devices) == 1
        (node.cdi / NAME).unlink()
        node.cdi.rmdir()
        assert await node.unprepare("x") == ""

    on(tmp_path, use)


@pytest.mark.parametrize("name", [NAME, f".{NAME}.new"])
@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_file_of_our_name_by_another_program_is_replaced(tmp_path: Path, name: str, kind: str) -> None:
    """The content is ours afterwards, and what a link points to stays as it is."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        node.cdi.mkdir()
        target = tmp_path / "target"
        if kind == "link":
            target.write_text("theirs")
        if kind == "file":
            (node.cdi / name).write_text('{"devices":[]}')
        else:
            (node.cdi / name).symlink_to(target)
        assert len((await node.prepare("x"))["x"].devices) == 1
        (written,) = node.files().values()
        assert not (node.cdi / NAME).is_symlink()
        assert written["devices"][0]["containerEdits"]["env"] == [f"DRA_CPUSET_{uid_of('x')}=0"]
        assert not target.exists() or target.read_text() == "theirs"

    on(tmp_path, use)
