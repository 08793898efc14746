"""The driver on its sockets: what the kubelet asks, what passes see of it, and what containers find in the CDI folder."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.dra import registration_pb2 as registration
from agent.dra.cdi import CDIFiles
from apiserver.errors import Refused, Unavailable
from pinning.dra.claims import ClaimGrant, ClaimPart, DeviceClaim
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from pinning.pods.resources import MOST_CPUS
from tests.agent.dra.driver_node import Node, driver_at, pod
from tests.pinning.dra.claiming import claim, document, result, uid_of

UID = uid_of("x")


async def test_driver_says_who_it_is(tmp_path: Path) -> None:
    """The registration gives the kubelet the host's path of the service."""
    async with driver_at(tmp_path) as node:
        info = await node.registration().ask("GetInfo", registration.InfoRequest(), registration.PluginInfo)
        assert (info.type, info.name, list(info.supported_versions)) == (
            "DRAPlugin",
            "cpu.corepin.io",
            ["v1.DRAPlugin"],
        )
        assert info.endpoint == str(node.root / "plugins/cpu.corepin.io/dra.sock")


async def test_second_prepare_is_answered_from_the_ledger(tmp_path: Path) -> None:
    """The second answer is the same, also while the API server does not answer, because the pod is still there."""
    async with driver_at(tmp_path) as node:
        node.add("x", 1, 1)
        first = (await node.prepare("x"))["x"]
        assert [(list(it.request_names), it.device_name, it.share_id) for it in first.devices] == [
            (["r0"], "cpudevnuma000", "s-1"),
            (["r1"], "cpudevnuma000", "s-1"),
        ]
        assert list(first.devices[0].cdi_device_ids) == [f"corepin.io/cpu=claim-{UID}-r0"]
        node.pods = [pod("a", "x")]
        node.run_pass()
        node.driver.book.read_seconds = 0.05
        for problem in (Unavailable("down"), Refused("403: forbidden")):
            node.api.problem = problem
            assert (await node.prepare("x"))["x"] == first
        (written,) = node.files().values()
        assert [device["containerEdits"]["env"] for device in written["devices"]] == [
            [f"DRA_CPUSET_{UID}=0"],
            [f"DRA_CPUSET_{UID}=1"],
        ]
        assert await node.unprepare("x") == ""
        assert (node.files(), dict(node.ledger.claims)) == ({}, {})
        assert await node.unprepare("x") == ""


async def test_claim_that_was_read_twice_is_kept_once(tmp_path: Path) -> None:
    """After Prepare the claim that was read for its pod is the ledger's, and its pods are those of the first pass."""
    async with driver_at(tmp_path) as node:
        node.add("x", 1)
        node.pods = [pod("a", "x")]
        node.run_pass()
        while not node.driver.seen(node.pods, node.live).read:
            await asyncio.sleep(0)
        await node.prepare("x")
        assert node.driver.seen(node.pods, node.live).known[UID] is node.ledger.claims[UID].claim
        claims, key = node.driver._pods, ("test", "x")
        assert claims._wanted[key] is claims._read[key].pods


async def test_each_claim_of_a_request_has_its_own_answer(tmp_path: Path) -> None:
    """A claim of another driver and a missing one do not block the third."""
    async with driver_at(tmp_path) as node:
        node.add("x", 1)
        node.api.claims["mem"] = document(result(driver="mem.example"), uid=uid_of("mem"))
        found = await node.prepare("x", "mem", "gone")
        assert len(found["x"].devices) == 1
        assert (len(found["mem"].devices), found["mem"].error) == (0, "")
        assert found["gone"].error == "claim test/gone does not exist: delete the pod"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (document(result("1"), uid=uid_of("other")), "was recreated with another uid"),
        (document(result(consumedCapacity=None), uid=UID), "has no consumedCapacity"),
        (document(*[result("1")] * 200, uid=UID), "results is not a list of at most 32"),
        ([], "is not an object"),
    ],
)
async def test_invalid_claim_is_refused_with_a_reason(tmp_path: Path, given: Any, text: str) -> None:
    """An invalid claim is refused with a reason, which the kubelet shows in an event of the pod."""
    async with driver_at(tmp_path) as node:
        node.api.claims["x"] = given
        error = (await node.prepare("x"))["x"].error
        assert text in error
        assert len(error) < 400  # whatever the claim has
        assert (node.files(), dict(node.ledger.claims)) == ({}, {})


async def test_refused_reads_and_invalid_uids_are_errors(tmp_path: Path) -> None:
    """Refused reads and invalid uids are not retried within the call."""
    async with driver_at(tmp_path) as node:
        node.api.problem = Refused("403: forbidden")
        assert "cannot be read: 403: forbidden" in (await node.prepare("x"))["x"].error
        assert "is not a uid" in (await node.prepare("x", uid="../x"))["x"].error
        assert node.api.requests == ["/apis/resource.k8s.io/v1/namespaces/test/resourceclaims/x"]


async def test_claim_waits_for_free_cpus(tmp_path: Path) -> None:
    """Prepare waits until an Unprepare frees a CPU; at the timeout the error has the numbers."""
    async with driver_at(tmp_path, cpus=1) as node:
        for name in "xyz":
            node.add(name, 1)
        await node.prepare("x")
        waiting = asyncio.create_task(node.prepare("y"))
        while not node.driver.book.asked:
            await asyncio.sleep(0)
        assert await node.unprepare("x") == ""
        assert len((await waiting)["y"].devices) == 1
        node.driver.book._wait_seconds = 0.05
        assert (await node.prepare("z"))["z"].error == "claim test/z: request cpu wants 1 CPUs: wait"
        assert not node.driver.book.asked


async def test_unprepared_claim_that_waits_is_not_prepared(tmp_path: Path) -> None:
    """For a deleted pod the kubelet calls Prepare and Unprepare at the same time."""
    async with driver_at(tmp_path, cpus=0) as node:
        node.add("x", 1)
        waiting = asyncio.create_task(node.prepare("x"))
        while not node.driver.book.asked:
            await asyncio.sleep(0)
        assert await node.unprepare("x") == ""
        node.run_pass()
        assert "unprepared in the meantime" in (await waiting)["x"].error


async def test_waiting_claims_share_one_request_per_backoff(tmp_path: Path) -> None:
    """Any number of waiting claims share one request per backoff, and all are prepared after the outage."""
    async with driver_at(tmp_path, cpus=30) as node:
        names = [f"c{number:02}" for number in range(30)]
        for name in names:
            node.add(name, 1)
        node.api.problem = Unavailable("down")
        waiting = asyncio.create_task(node.prepare(*names))
        while len(node.slept) < 20:
            await asyncio.sleep(0)
        assert len(node.api.requests) <= len(node.slept) + 3
        assert node.slept[-1] > node.slept[0]
        node.api.problem = None
        assert all(not it.error for it in (await waiting).values())


async def test_unavailable_api_server_is_the_reason(tmp_path: Path) -> None:
    """Prepare is refused before the kubelet's deadline with the unavailable API server as reason."""
    async with driver_at(tmp_path) as node:
        node.api.problem = Unavailable("down")
        node.driver.book._wait_seconds = 0.05
        assert (await node.prepare("x"))["x"].error == "claim test/x: the API server does not answer"


async def test_unwritable_cdi_folder_is_an_error(tmp_path: Path) -> None:
    """The claim keeps its CPUs, and the kubelet's next call writes the file."""
    async with driver_at(tmp_path) as node:
        node.add("x", 1)
        node.cdi.mkdir(exist_ok=True)
        blocked = node.cdi / f"corepin.io-cpu_claim-{UID}.json"
        blocked.mkdir()
        error = (await node.prepare("x"))["x"].error
        assert "the CDI file of claim test/x cannot be written" in error
        blocked.rmdir()
        assert len((await node.prepare("x"))["x"].devices) == 1


async def test_claims_are_planned_only_after_registration(tmp_path: Path) -> None:
    """Before the registration passes do not see claims, because the kubelet would get no answer."""
    async with driver_at(tmp_path) as node:
        node.add("x", 1)
        node.pods = [pod("a", "x", "gone")]
        node.run_pass()
        while len(node.driver.seen(node.pods, ()).read) < 2:
            await asyncio.sleep(0)
        assert not node.driver.seen(node.pods, ()).known
        await node.register()
        assert list(node.driver.seen(node.pods, ()).known) == [UID]
        requests = len(node.api.requests)
        node.pods = [pod("a", "x", "gone"), pod("b", "x")]
        node.run_pass()
        assert ("test", "x", "b") not in node.driver.seen(node.pods, ()).read
        while ("test", "x", "b") not in node.driver.seen(node.pods, ()).read:
            await asyncio.sleep(0)
        assert len(node.api.requests) == requests + 1
        node.pods = []
        assert not node.driver.seen(node.pods, ()).known


async def test_unread_claims_block_pods_for_a_limited_time(tmp_path: Path) -> None:
    """After the timeout other requests of such containers count."""
    async with driver_at(tmp_path) as node:
        node.driver._pods._patience = 0.01
        node.api.problem = Unavailable("down")
        node.pods = [pod("a", "x")]
        assert not node.driver.seen(node.pods, ()).read
        while not node.driver.seen(node.pods, ()).read:
            await asyncio.sleep(0.001)


async def test_refused_registration_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An older kubelet tries again and again."""
    async with driver_at(tmp_path) as node:
        for _ in range(3):
            await node.register(ok=False, error="version v1.DRAPlugin is not supported")
        assert not node.driver.plugin.is_registered
    assert [it.message for it in caplog.records].count("the kubelet refuses the driver") == 1


async def test_observing_agent_is_not_registered(tmp_path: Path) -> None:
    """An observing agent removes its sockets under the kubelet's static policy, and creates them afterwards."""
    async with driver_at(tmp_path) as node:
        socket = node.root / "plugins_registry/cpu.corepin.io-reg.sock"
        for observes in (True, False):
            node.observes = observes
            node.run_pass()
            while socket.exists() is observes:
                await asyncio.sleep(0)


async def test_files_follow_the_ledger_after_a_restart(tmp_path: Path) -> None:
    """Stale files are deleted, missing ones written, and other programs' files stay."""
    kept, gone = claim("x", 1), claim("y", 1)
    first = CDIFiles(tmp_path / "cdi")
    first.write(ClaimGrant(gone, (CPUSet([1]),)))
    (tmp_path / "cdi/gpu.json").write_text("{}")
    (tmp_path / "cdi/.corepin.io-cpu_claim-x.json.new").write_text("{")
    grant = ClaimGrant(kept, (CPUSet([2]),), is_prepared=True)
    node = Node(tmp_path)
    assert node.driver.seen((), ()).found[0].claim == gone
    node.driver.passed(Ledger().grant(grant), {}, observes=False)
    assert sorted(node.files()) == [f"corepin.io-cpu_claim-{UID}.json", "gpu.json"]


def test_grants_are_read_from_valid_files_only(tmp_path: Path) -> None:
    """Without a checkpoint grants are restored from the valid files."""
    files = CDIFiles(tmp_path)
    grant = ClaimGrant(claim("x", 1), (CPUSet([1]),), is_prepared=True)
    files.write(grant)
    for name, text in (
        ("a", "{"),
        ("b", "[]"),
        ("c", '{"annotations":{"corepin.io/claim":"{}"}}'),
        ("f", '{"annotations":{"corepin.io/claim":"\\ud800"}}'),
    ):
        (tmp_path / f"corepin.io-cpu_claim-{name}.json").write_text(text)
    (tmp_path / "corepin.io-cpu_claim-d.json").symlink_to(tmp_path / "a")
    (tmp_path / "corepin.io-cpu_claim-e.json").mkdir()
    assert files.given() == (grant,)
    assert CDIFiles(tmp_path / "missing").given() == ()
    stamp = next(tmp_path.glob(f"*{UID}*")).stat().st_ino
    files.write(grant)
    assert next(tmp_path.glob(f"*{UID}*")).stat().st_ino == stamp
    files.write(replace(grant, is_prepared=False))
    assert next(tmp_path.glob(f"*{UID}*")).stat().st_ino != stamp


async def test_claim_deleted_during_a_restart_is_released(tmp_path: Path) -> None:
    """A claim that neither pods nor the API server have is released; one of a pod stays."""
    async with driver_at(tmp_path) as node:
        parts = (ClaimPart("cpu", "cpudevnuma000", "", 1),)
        for at, (name, uid) in enumerate((("x", "gone"), ("y", "a"))):
            left = DeviceClaim(uid_of(name), "test", name, frozenset([uid]), parts)
            node.ledger = node.ledger.grant(ClaimGrant(left, (CPUSet([at]),), is_prepared=True))
        node.pods = [pod("a", "y")]
        node.run_pass()
        while uid_of("x") in node.ledger.claims:
            await asyncio.sleep(0.001)
        assert uid_of("y") in node.ledger.claims


async def test_claim_deallocated_during_a_restart_is_released(tmp_path: Path) -> None:
    """A claim is released if its pod was deleted and it was deallocated during a restart, without an Unprepare."""
    async with driver_at(tmp_path) as node:
        for name in ("x", "y", "z"):
            node.add(name, 1)
            await node.prepare(name)
        node.add("x", 2)
        node.add("y")
        while node.ledger.claims.keys() != {uid_of("z")}:
            await asyncio.sleep(0.001)


async def test_claim_of_thirty_two_results_has_a_device_for_each(tmp_path: Path) -> None:
    """The CDI file of a claim with 32 results has a device for each, and an agent without a checkpoint reads it."""
    async with driver_at(tmp_path, cpus=32) as node:
        node.add("x", *[1] * 32)
        devices = (await node.prepare("x"))["x"].devices
        assert [list(it.request_names) for it in devices] == [[f"r{at}"] for at in range(32)]
        (written,) = node.files().values()
        assert [it["containerEdits"]["env"] for it in written["devices"]] == [
            [f"DRA_CPUSET_{UID}={node.ledger.claims[UID].of(f'r{at}')}"]
            for at in sorted(range(32), key=lambda at: f"r{at}")
        ]
        assert CDIFiles(node.cdi).given() == (node.ledger.claims[UID],)
        assert await node.unprepare("x") == ""
        assert (node.files(), dict(node.ledger.claims)) == ({}, {})


def test_largest_claim_is_read_from_its_file(tmp_path: Path) -> None:
    """The largest claim has the most results, the longest names, and every other CPU of the largest machine."""
    names = [f"{at:02}".ljust(63, "r") for at in range(32)]
    parts = tuple(ClaimPart(name, "d" * 63, "s" * 36, MOST_CPUS // 64) for name in names)
    kept = tuple(CPUSet(range(at * 2, MOST_CPUS, 64)) for at in range(32))
    pods = frozenset(uid_of(f"p{at}") for at in range(256))
    largest = ClaimGrant(DeviceClaim(UID, "n" * 63, "c" * 253, pods, parts), kept, is_prepared=True)
    files = CDIFiles(tmp_path)
    files.write(largest)
    assert files.given() == (largest,)


async def test_many_claims_are_prepared_concurrently(tmp_path: Path) -> None:
    """Each of 128 pods has its own claim."""
    async with driver_at(tmp_path, cpus=200) as node:
        names = [f"c{number:03}" for number in range(128)]
        for name in names:
            node.add(name, 1)
        found = await asyncio.gather(*(node.prepare(name) for name in names[:4]))
        found += [await node.prepare(*names[4:])]
        assert all(len(it.devices) == 1 for answer in found for it in answer.values())
        assert len(node.files()) == 128
