"""Cgroups of containers are told as soon as they are made, wherever the kubelet and the runtime make them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

import pytest

from agent.errors import Gone, Refused
from agent.interfaces import NewContainer
from agent.kernel.cgroup_names import container_id
from agent.kernel.inotify import OVERFLOW, Event
from agent.kernel.new_cgroups import CgroupWatcher
from pinning.planning.observed import Owner
from tests.agent.cgroup_trees import make_root

SECONDS = 60.0
ID, OTHER, SANDBOX, KNOWN = "a" * 64, "b" * 64, "c" * 64, "d" * 64
PODS = ("/kubepods.slice", "/kubepods")
POD = "/kubepods/burstable/pod1"


class Runtime:
    """Knows that every id but the sandbox's is the container of a pod."""

    def known(self, container_id: str) -> Owner | None:
        """Know one without a question."""
        if container_id == SANDBOX:
            raise Gone(container_id)
        return Owner("uid", "known") if container_id == KNOWN else None

    async def owner(self, container_id: str) -> Owner:
        """Return whose it is."""
        if container_id == SANDBOX:
            raise Gone(container_id)
        return Owner("uid", container_id[0])

    async def created(self, _: Collection[str]) -> Mapping[str, Owner | None]:
        """Ask for none: the watch does not need it."""
        raise NotImplementedError


@pytest.fixture
def cpuset(tmp_path: Path) -> Path:
    """Return the root of a hierarchy."""
    return make_root(tmp_path, 1)


def found_by_watcher(
    cpuset: Path,
    happens: Callable[[CgroupWatcher], Awaitable[None]],
    *expected: str,
    ordered: bool = True,
) -> list[NewContainer]:
    """Watch while something happens, until as many containers as expected are told; return them."""
    watcher = CgroupWatcher(cpuset.parent, Runtime(), PODS)

    async def run() -> list[NewContainer]:
        created: list[NewContainer] = []
        all_told = asyncio.Event()

        def tell(container: NewContainer) -> None:
            if container not in created:  # made while its pod begins to be watched, it may come twice
                created.append(container)
            if len(created) == len(expected):
                all_told.set()

        watching = asyncio.create_task(watcher.watch(tell, lambda: None))
        await asyncio.sleep(0)
        await happens(watcher)
        await asyncio.wait_for(all_told.wait(), SECONDS)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return created

    try:
        created = asyncio.run(run())
    finally:
        watcher.close()
    found = [container.cgroup for container in created]
    assert (found if ordered else sorted(found)) == (list(expected) if ordered else sorted(expected))
    return created


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param(ID, ID, id="containerd, cgroupfs"),
        pytest.param(f"cri-containerd-{ID}.scope", ID, id="containerd, systemd"),
        pytest.param(f"crio-{ID}", ID, id="CRI-O, cgroupfs"),
        pytest.param(f"crio-{ID}.scope", ID, id="CRI-O, systemd"),
        pytest.param(f"crio-conmon-{ID}.scope", None, id="CRI-O's monitor"),
        pytest.param("pod0e5b0b3c", None, id="a pod"),
        pytest.param("kubepods-burstable-pod1.slice", None, id="a pod's slice"),
        pytest.param(ID[1:], None, id="too short"),
    ],
)
def test_container_is_known_by_the_name_of_its_cgroup(name: str, found: str | None) -> None:
    """The id is at the end of the name, as the runtimes write it."""
    assert container_id(name) == found


def test_container_beside_a_known_one_is_told(cpuset: Path) -> None:
    """In the pod of a known container, and in one that is made beside that pod later."""
    (cpuset / POD[1:] / ID).mkdir(parents=True)

    async def happens(watcher: CgroupWatcher) -> None:
        watcher.follow([f"{POD}/{ID}"])
        (cpuset / POD[1:] / OTHER).mkdir()
        (cpuset / "kubepods/burstable/pod2" / OTHER).mkdir(parents=True)

    second = f"/kubepods/burstable/pod2/{OTHER}"
    created = found_by_watcher(cpuset, happens, f"{POD}/{ID}", f"{POD}/{OTHER}", second)
    assert created[-1] == NewContainer(OTHER, Owner("uid", "b"), second)


def test_first_container_of_a_node_is_told(cpuset: Path) -> None:
    """Below the kubelet's cgroup of all pods nothing has to be known before."""
    (cpuset / "kubepods").mkdir()

    async def happens(watcher: CgroupWatcher) -> None:
        watcher.follow([])
        (cpuset / POD[1:]).mkdir(parents=True)
        await asyncio.sleep(0)
        (cpuset / POD[1:] / ID).mkdir()

    found_by_watcher(cpuset, happens, f"{POD}/{ID}")


def test_sandbox_and_what_a_container_makes_are_not_told(cpuset: Path) -> None:
    """Only containers are; what is below a container is its own."""
    (cpuset / POD[1:]).mkdir(parents=True)

    async def happens(watcher: CgroupWatcher) -> None:
        watcher.follow([])
        (cpuset / POD[1:] / SANDBOX).mkdir()
        (cpuset / POD[1:] / ID / OTHER).mkdir(parents=True)
        await asyncio.sleep(0)
        (cpuset / POD[1:] / OTHER).mkdir()

    found_by_watcher(cpuset, happens, f"{POD}/{ID}", f"{POD}/{OTHER}")


def test_container_of_crio_is_told_by_its_pod(cpuset: Path) -> None:
    """CRI-O lists it too late; of those that are listed, or that no pod's folder holds, the runtime tells the name."""
    made = [f"{POD}/crio-{ID}", f"{POD}/crio-{KNOWN}", f"/kubepods/other/crio-{OTHER}"]
    (cpuset / "kubepods").mkdir()

    async def happens(watcher: CgroupWatcher) -> None:
        watcher.follow([])
        (cpuset / POD[1:] / f"crio-{SANDBOX}").mkdir(parents=True)
        for cgroup in made:
            (cpuset / cgroup[1:]).mkdir(parents=True)
            await asyncio.sleep(0)

    owners = ["1", Owner("uid", "known"), Owner("uid", "b")]
    watcher_found: list[NewContainer] = found_by_watcher(cpuset, happens, *made, ordered=False)
    assert sorted((it.cgroup, it.owner) for it in watcher_found) == sorted(zip(made, owners, strict=True))


def test_pods_that_are_gone_are_forgotten(cpuset: Path) -> None:
    """Their watches are given back, also when nobody ever knew a container of theirs."""
    (cpuset / POD[1:] / ID).mkdir(parents=True)
    watcher = CgroupWatcher(cpuset.parent, Runtime(), PODS)

    async def follow() -> None:
        watcher.follow([f"{POD}/{ID}"])
        (cpuset / "kubepods/burstable/pod2").mkdir()
        watcher._report()
        assert "/kubepods/burstable/pod2" in watcher._watches.names
        shutil.rmtree(cpuset / "kubepods/burstable/pod2")
        shutil.rmtree(cpuset / POD[1:])
        watcher.follow([])

    asyncio.run(follow())
    assert watcher._watches.names == {"/kubepods", "/kubepods/burstable"}
    watcher.close()


def test_lost_events_mean_a_new_look(cpuset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made while the queue ran over is found by the next pass."""
    (cpuset / POD[1:]).mkdir(parents=True)

    async def happens(watcher: CgroupWatcher) -> None:
        watcher.follow([])
        monkeypatch.setattr(watcher._watches._inotify, "news", lambda: [Event(OVERFLOW, "")])
        (cpuset / POD[1:] / ID).mkdir()
        watcher._report()
        monkeypatch.undo()
        watcher.follow([])

    found_by_watcher(cpuset, happens, f"{POD}/{ID}")


def test_inotify_limits_are_told(cpuset: Path) -> None:
    """A queue that cannot watch says which limit to raise."""
    (cpuset / "kubepods").mkdir()
    watcher = CgroupWatcher(cpuset.parent, Runtime(), PODS)
    watcher.close()
    with pytest.raises(Refused, match=r"raise fs\.inotify\.max_user_instances and max_user_watches"):
        watcher.follow([])
