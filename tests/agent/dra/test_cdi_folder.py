"""A CDI folder that is missing, read-only, full, or has foreign files with the driver's file names."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pinning.dra.claims import ClaimGrant
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from tests.agent.dra.driver_node import driver_at, pod
from tests.pinning.dra.claiming import claim, uid_of

NAME = f"corepin.io-cpu_claim-{uid_of('x')}.json"
SMALL = 4096  # bytes of a file system: one page


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on its own file system of one page."""
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
    """Remount the file system of a folder writable and free its space."""
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    (folder / "gpu.json").unlink(missing_ok=True)


def make_read_only(folder: Path) -> None:
    """Remount the file system of a folder read-only."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [(make_full, "No space left on device"), (make_read_only, "Read-only file system")],
    ids=["full", "read-only"],
)
async def test_folder_that_takes_no_file_is_the_reason_of_a_refusal(
    tmp_path: Path, small: Path, spoil: Callable[[Path], None], text: str
) -> None:
    """Prepare fails with the folder's error, leaves no partial file, and succeeds on a retry once there is room."""
    async with driver_at(tmp_path) as node:
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


async def test_claim_is_given_back_only_with_its_file(tmp_path: Path, small: Path) -> None:
    """Unprepare fails while the CDI file cannot be deleted, because the file would name the next owner's CPUs."""
    async with driver_at(tmp_path) as node:
        await node.add_prepared("x", 1)
        make_read_only(small)
        assert "its CDI file cannot be deleted" in await node.unprepare("x")
        make_writable_again(small)
        assert await node.unprepare("x") == ""
        assert not list(small.iterdir())


async def test_missing_folder_is_made(tmp_path: Path) -> None:
    """Prepare creates a missing CDI folder, because the node may have no other DRA driver."""
    async with driver_at(tmp_path) as node:
        node.add("x", 1)
        assert not node.cdi.exists()
        assert len((await node.prepare("x"))["x"].devices) == 1
        (node.cdi / NAME).unlink()
        node.cdi.rmdir()
        assert await node.unprepare("x") == ""


@pytest.mark.parametrize("name", [NAME, f".{NAME}.new"])
@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
async def test_file_of_our_name_by_another_program_is_replaced(tmp_path: Path, name: str, kind: str) -> None:
    """Afterwards the folder has the agent's content, and the target of a link is unchanged."""
    async with driver_at(tmp_path) as node:
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


@pytest.mark.parametrize("kind", ["deleted", "changed", "folder deleted"])
async def test_file_of_a_prepared_claim_is_written_again(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A lost or changed file of a prepared claim is restored, because a restarted container gets no new Prepare."""
    async with driver_at(tmp_path, files_seconds=0.001) as node:
        await node.add_prepared("x", 1)
        path = node.cdi / NAME
        content = path.read_bytes()
        if kind == "changed":
            path.write_text("{}")
        else:
            path.unlink()
        if kind == "folder deleted":
            with suppress(OSError):  # the file is back already
                node.cdi.rmdir()
        while not path.exists() or path.read_bytes() != content:
            await asyncio.sleep(0.001)
        assert await node.unprepare("x") == ""
        assert node.files() == {}
    assert node.files() == {}
    assert "CDI file written again" in [it.message for it in caplog.records]


async def test_file_follows_the_pods_of_its_claim_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file records the pods of a claim. If a further pod shares the claim, no other program has changed the file."""
    async with driver_at(tmp_path, files_seconds=0.001, leftover_seconds=60.0) as node:
        await node.add_prepared("x", 1)
        content = (node.cdi / NAME).read_text()
        grant = node.ledger.claims[uid_of("x")]
        shared = replace(grant.claim, pods=frozenset("ab"))
        node.ledger = node.ledger.grant(replace(grant, claim=shared))
        node.run_pass()
        while (node.cdi / NAME).read_text() == content:
            await asyncio.sleep(0.001)
    assert "CDI file written again" not in [it.message for it in caplog.records]


async def test_file_that_cannot_be_replaced_keeps_no_other_from_being_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder under the name of a claim's file is reported, and the files of other claims are written and deleted."""
    other, left = (NAME.replace(uid_of("x"), uid_of(name)) for name in ("y", "z"))
    async with driver_at(tmp_path, files_seconds=0.001, leftover_seconds=60.0) as node:
        (node.cdi / NAME).mkdir(parents=True)
        for name in ("x", "y"):
            await node.add_prepared(name, 1)
        (node.cdi / left).touch()
        (node.cdi / other).unlink()
        while not (node.cdi / other).exists() or (node.cdi / left).exists():
            await asyncio.sleep(0.001)
        (node.cdi / NAME).rmdir()
    assert "CDI files not written" in [it.message for it in caplog.records]


async def test_file_stays_while_containers_run_on_a_claim_that_was_given_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While containers use an unprepared claim its file is restored; a pass that releases the claim deletes it."""
    async with driver_at(tmp_path, files_seconds=0.001, leftover_seconds=60.0) as node:
        await node.add_prepared("x", 1)
        node.in_use.add(uid_of("x"))
        assert await node.unprepare("x") == ""
        path = node.cdi / NAME
        path.unlink()
        while not path.exists():
            await asyncio.sleep(0.001)
        assert list(node.ledger.claims) == [uid_of("x")]
        node.in_use.clear()
        node.run_pass()
        assert not node.ledger.claims
        while path.exists():
            await asyncio.sleep(0.001)
    assert "claim unprepared while in use" in [it.message for it in caplog.records]


async def test_files_of_an_earlier_agent_stay_until_the_first_pass(tmp_path: Path) -> None:
    """Files of an earlier agent are kept until the first pass, because they may replace a lost checkpoint."""
    async with driver_at(tmp_path) as node:
        await node.add_prepared("x", 1)
        node.driver.book.grants = None
        looks = 0

        async def sleep(_seconds: float) -> None:
            nonlocal looks
            looks += 1
            if looks > 100:
                raise asyncio.CancelledError

        node.driver._sleep = sleep
        with suppress(asyncio.CancelledError):
            await node.driver._keep_files()
        assert list(node.files()) == [NAME]


async def test_file_that_cannot_be_written_is_tried_again(
    tmp_path: Path, small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent that starts with a full folder retries the write, and logs the reason once."""
    grant = ClaimGrant(claim("x", 1), (CPUSet([1]),), is_prepared=True)
    make_full(small)

    def tries() -> int:
        return [it.message for it in caplog.records].count("CDI files not written")

    async with driver_at(tmp_path, files_seconds=0.001) as node:
        node.pods = [pod("a", "x")]
        node.ledger = Ledger().grant(grant)
        node.run_pass()
        while not tries():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)  # time for further tries, none of which is logged
        make_writable_again(small)
        while not (small / NAME).exists():
            await asyncio.sleep(0.001)
    assert tries() == 1
