"""New container cgroups are reported at their creation, wherever kubelet and runtime put them."""

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
from tests.environments.node.cgroup_trees import make_root
from tests.environments.waiting import background

SECONDS = 60.0
ID, OTHER, SANDBOX, KNOWN = "a" * 64, "b" * 64, "c" * 64, "d" * 64
PODS = ("/kubepods.slice", "/kubepods")
POD = "/kubepods/burstable/pod1"


class Runtime:
    """A runtime in which every id except the sandbox's is a container."""

    def known(self, container_id: str) -> Owner | None:
        """Return the owner of a known id, or None."""
        if container_id == SANDBOX:
            raise Gone(container_id)
        return Owner("uid", "known") if container_id == KNOWN else None

    async def owner(self, container_id: str) -> Owner:
        """Return the owner of an id."""
        if container_id == SANDBOX:
            raise Gone(container_id)
        return Owner("uid", container_id[0])

    async def created(self, _: Collection[str]) -> Mapping[str, Owner | None]:
        """Raise, because the watch does not use it."""
        raise NotImplementedError


@pytest.fixture
def cpuset(tmp_path: Path) -> Path:
    """Return the root of a cgroup hierarchy."""
    return make_root(tmp_path, 1)


def found_by_watcher(
    cpuset: Path,
    happens: Callable[[CgroupWatcher], Awaitable[None]],
    *expected: str,
    ordered: bool = True,
) -> list[NewContainer]:
    """Watch while something happens, until the expected containers are reported; return them."""
    watcher = CgroupWatcher(cpuset.parent, Runtime(), PODS)

    async def run() -> list[NewContainer]:
        created: list[NewContainer] = []
        all_told = asyncio.Event()

        def tell(container: NewContainer) -> None:
            # a container created when its pod's watch begins may be reported twice
            if container not in created:
                created.append(container)
            if len(created) == len(expected):
                all_told.set()

        async with background(watcher.watch(tell, lambda: None)):
            await asyncio.sleep(0)
            await happens(watcher)
            await asyncio.wait_for(all_told.wait(), SECONDS)
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
def test_container_id_is_read_from_the_cgroup_name(name: str, found: str | None) -> None:
    """The id is the end of the name, in each runtime's format."""
    assert container_id(name) == found


def test_new_container_beside_a_known_one_is_reported(cpuset: Path) -> None:
    """A new container is reported in the pod of a known container and in a pod created later."""
    (cpuset / POD[1:] / ID).mkdir(parents=True)

    async def happens(watcher: CgroupWatcher) -> None:
        watcher.follow([f"{POD}/{ID}"])
        (cpuset / POD[1:] / OTHER).mkdir()
        (cpuset / "kubepods/burstable/pod2" / OTHER).mkdir(parents=True)

    second = f"/kubepods/burstable/pod2/{OTHER}"
    created = found_by_watcher(cpuset, happens, f"{POD}/{ID}", f"{POD}/{OTHER}", second)
    assert created[-1] == NewContainer(OTHER, Owner("uid", "b"), second)


def test_first_container_of_a_node_is_reported(cpuset: Path) -> None:
    """The first container of a node is reported without a known one, below the kubelet's pod cgroup."""
    (cpuset / "kubepods").mkdir()

    async def happens(watcher: CgroupWatcher) -> None:
        watcher.follow([])
        (cpuset / POD[1:]).mkdir(parents=True)
        await asyncio.sleep(0)
        (cpuset / POD[1:] / ID).mkdir()

    found_by_watcher(cpuset, happens, f"{POD}/{ID}")


def test_sandboxes_and_child_cgroups_are_not_reported(cpuset: Path) -> None:
    """Only containers are reported, not their child cgroups."""
    (cpuset / POD[1:]).mkdir(parents=True)

    async def happens(watcher: CgroupWatcher) -> None:
        watcher.follow([])
        (cpuset / POD[1:] / SANDBOX).mkdir()
        (cpuset / POD[1:] / ID / OTHER).mkdir(parents=True)
        await asyncio.sleep(0)
        (cpuset / POD[1:] / OTHER).mkdir()

    found_by_watcher(cpuset, happens, f"{POD}/{ID}", f"{POD}/{OTHER}")


def test_container_of_crio_is_reported_with_its_pod(cpuset: Path) -> None:
    """CRI-O lists new containers late, so the pod's uid from the path is reported as owner."""
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


async def test_watches_of_removed_pods_are_removed(cpuset: Path) -> None:
    """Watches of removed pods are released, also if no container of theirs was known."""
    (cpuset / POD[1:] / ID).mkdir(parents=True)
    watcher = CgroupWatcher(cpuset.parent, Runtime(), PODS)
    watcher.follow([f"{POD}/{ID}"])
    (cpuset / "kubepods/burstable/pod2").mkdir()
    watcher._report()
    assert "/kubepods/burstable/pod2" in watcher._watches.names
    shutil.rmtree(cpuset / "kubepods/burstable/pod2")
    shutil.rmtree(cpuset / POD[1:])
    watcher.follow([])
    assert watcher._watches.names == {"/kubepods", "/kubepods/burstable"}
    watcher.close()


def test_lost_events_are_recovered_by_the_next_pass(cpuset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cgroup created during a queue overflow is found by the next `follow`."""
    (cpuset / POD[1:]).mkdir(parents=True)

    async def happens(watcher: CgroupWatcher) -> None:
        watcher.follow([])
        monkeypatch.setattr(watcher._watches._inotify, "news", lambda: [Event(OVERFLOW, "")])
        (cpuset / POD[1:] / ID).mkdir()
        watcher._report()
        monkeypatch.undo()
        watcher.follow([])

    found_by_watcher(cpuset, happens, f"{POD}/{ID}")


def test_inotify_limit_is_in_the_error(cpuset: Path) -> None:
    """The error names the limits to raise."""
    (cpuset / "kubepods").mkdir()
    watcher = CgroupWatcher(cpuset.parent, Runtime(), PODS)
    watcher.close()
    with pytest.raises(Refused, match=r"raise fs\.inotify\.max_user_instances and max_user_watches"):
        watcher.follow([])
