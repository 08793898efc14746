"""Pinning a new container through its cgroup before its command runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from agent.absent import NoOwners
from agent.clock import Clock
from agent.errors import Gone, Refused, Unavailable
from agent.interfaces import Cgroups, NewContainer, StartState
from agent.reconcile.prestart import LONGEST_PAUSE, NAME_PAUSE, PreStartPinner, SharedLookup
from agent.reconcile.start_cpus import StartCPUs, Unplanned
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Owner
from tests.agent import virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

ALL, OWN = CPUSet.parse("0-3"), CPUSet.parse("1")
NEW_OWNER = Owner("uid", "main")
NEW = NewContainer("one", NEW_OWNER, "/kubepods/pod1/one")
NOBODY, HELD, RUNNING, CROWD = (
    StartState(None, has_begun=False),
    StartState(0.02, has_begun=False),
    StartState(0.03, has_begun=True),
    StartState(None, has_begun=True),
)


@dataclass
class Cgroup:
    """A cgroup that enters the next stage of its life each time it is read."""

    stages: Sequence[StartState | Exception]
    cpus: CPUSet = ALL
    overwrites: int = 0  # number of the agent's writes that the runtime overwrites when it fills the cpuset
    writes: list[CPUSet] = field(default_factory=list)
    looks: int = 0

    def start_state(self, _: str) -> StartState:
        """Return the next stage."""
        self.looks += 1
        if not self.stages:
            raise Gone("one")
        stage, self.stages = self.stages[0], self.stages[1:] or self.stages
        if isinstance(stage, Exception):
            raise stage
        return stage

    def read(self, _: str) -> CPUSet:
        """Return the cpuset."""
        return self.cpus

    def write(self, _: str, cpus: CPUSet) -> None:
        """Set the cpuset, unless the runtime overwrites this write."""
        self.writes.append(cpus)
        self.overwrites -= 1
        if self.overwrites < 0:
            self.cpus = cpus


def pinner_of(cgroup: Cgroup, owners: Any, target: Any, note: Any = lambda *_: None) -> PreStartPinner:
    """Return a pinner of one cgroup, in virtual time."""
    cgroups = Cgroups(cgroup, cgroup, cgroup, cgroup, cgroup)  # type: ignore[arg-type]
    return PreStartPinner(cgroups, owners, Clock(virtual_time.now), target, note)


async def ended(pinner: PreStartPinner) -> None:
    """Wait until no pinning is under way."""
    while pinner.is_pinning("one"):
        await asyncio.sleep(0.001)


def pinned(
    cgroup: Cgroup, cpus: CPUSet | None = OWN
) -> tuple[PreStartPinner, list[tuple[NewContainer, bool]]]:
    """Create a container; return its pinner and, for each write, whether the CPUs were right."""
    touched: list[tuple[NewContainer, bool]] = []

    def note(container: NewContainer, is_right: bool) -> None:
        touched.append((container, is_right))

    async def run() -> PreStartPinner:
        target = None if cpus is None else StartCPUs(cpus)
        pinner = pinner_of(cgroup, NoOwners(), lambda _: target, note)
        pinner.pin(NEW)
        pinner.pin(NEW)
        assert pinner.is_pinning("one")
        await ended(pinner)
        return pinner

    return virtual_time.run(run()), touched


def seconds(pinner: PreStartPinner, cpus: CPUSet) -> float | None:
    """Return how long the container may have run on other CPUs."""
    right = pinner.taken("one", cpus)
    assert right is not None
    return right.seconds


def test_right_before_the_command_runs() -> None:
    """If the agent writes an empty cpuset and reads it back before the command runs, the unpinned time is zero."""
    cgroup = Cgroup([NOBODY, NOBODY, NOBODY, HELD])
    pinner, touched = pinned(cgroup)
    assert cgroup.writes == [OWN]
    assert seconds(pinner, OWN) == 0.0
    assert pinner.taken("one", OWN) is None
    assert touched == [(NEW, True)] * 2


def test_overwritten_set_is_written_again() -> None:
    """If the runtime overwrites the cpuset, the agent writes it again until the runtime's process is in the cgroup."""
    cgroup = Cgroup([NOBODY] * 6 + [HELD], overwrites=2)
    pinner, touched = pinned(cgroup)
    assert cgroup.writes == [OWN] * 3
    assert touched == [(NEW, False)] * 2 + [(NEW, True)] * 2
    assert seconds(pinner, OWN) == 0.0


def test_command_that_runs_already_is_left_to_a_pass() -> None:
    """If a container's command already runs on other CPUs, the next pass moves the container."""
    cgroup = Cgroup([RUNNING])
    pinner, touched = pinned(cgroup)
    assert cgroup.writes == []
    assert pinner.taken("one", OWN) is None
    assert touched == [(NEW, False)]


def test_command_that_ran_before_the_look_has_an_unpinned_time() -> None:
    """If the command already ran when the cgroup was found, the unpinned time is the age of its process."""
    cgroup = Cgroup([NOBODY, RUNNING])
    pinner, touched = pinned(cgroup)
    assert seconds(pinner, OWN) == 0.03
    assert touched[-1] == (NEW, False)


@pytest.mark.parametrize("cpus", [ALL, OWN])
def test_command_that_ran_for_an_unknown_time_is_not_waited_for(cpus: CPUSet) -> None:
    """A container that has run for an unknown time is not read a second time, because each read takes 25 ms."""
    cgroup = Cgroup([NOBODY, CROWD] if cpus == ALL else [CROWD], cpus=cpus)
    right = pinned(cgroup)[0].taken("one", OWN)
    assert right is None or right.seconds is None
    assert cgroup.looks == (2 if cpus == ALL else 1)


def test_unpinned_time_is_of_the_written_cpus() -> None:
    """The unpinned time counts only if the container has the CPUs that were written before its start."""
    pinner, _ = pinned(Cgroup([HELD]))
    assert pinner.taken("one", ALL) is None


def test_pinning_ends_with_the_cgroup_or_without_a_target() -> None:
    """Pinning ends when the cgroup is deleted, and does not begin without target CPUs."""
    assert pinned(Cgroup([]))[1] == [(NEW, False)]
    untouched = Cgroup([NOBODY], cpus=EMPTY)
    pinned(untouched, cpus=None)
    assert untouched.writes == []


def test_age_that_cannot_be_read_after_the_write_stays_unknown() -> None:
    """The unpinned time is None if the age of the processes cannot be read."""
    pinner, touched = pinned(Cgroup([NOBODY, Refused("threaded")]))
    assert seconds(pinner, OWN) is None
    assert touched == [(NEW, False)]


# Containers that the runtime does not list yet.


@dataclass
class Listing:
    """A runtime that lists a container or a sandbox only after some requests."""

    questions: int
    owner_then: Owner | None = NEW_OWNER
    asked: int = 0

    def known(self, _: str) -> Owner | None:
        """Raise Gone once the id is listed as a sandbox."""
        self.questions -= 1
        if self.owner_then is None and self.questions < 0:
            raise Gone("a sandbox")
        return None

    async def owner(self, _: str) -> Owner:
        """Raise, because this test requests no single container."""
        raise NotImplementedError

    async def created(self, container_ids: Collection[str]) -> Mapping[str, Owner | None]:
        """Return the owners once they are listed."""
        self.asked += 1
        if self.questions % 2:
            raise Unavailable("not listed yet")
        return {} if self.questions >= 0 else dict.fromkeys(container_ids, self.owner_then)


def pinned_by_pod(
    cgroup: Cgroup, listing: Listing, targets: Mapping[Any, StartCPUs | Unplanned | None]
) -> tuple[PreStartPinner, list[NewContainer]]:
    """Let CRI-O create a container of pod `uid`; return its pinner and the containers that were reported as pinned."""
    touched: list[NewContainer] = []

    async def run() -> PreStartPinner:
        pinner = pinner_of(
            cgroup, listing, targets.__getitem__, lambda container, _: touched.append(container)
        )
        pinner.pin(NEW._replace(owner="uid"))
        await ended(pinner)
        return pinner

    return virtual_time.run(run()), touched


def test_container_is_pinned_unnamed_if_its_pod_has_one_cpuset() -> None:
    """If all containers of a pod have the same CPUs, a new one is pinned without listing the runtime."""
    cgroup, listing = Cgroup([NOBODY, NOBODY, NOBODY, HELD]), Listing(1000)
    pinner, _ = pinned_by_pod(cgroup, listing, {"uid": StartCPUs(OWN)})
    assert (cgroup.writes, listing.asked) == ([OWN], 0)
    assert pinner.is_right("one", OWN)


def test_pod_of_several_sets_is_confined_until_the_name_is_known() -> None:
    """A container is confined to the union of its pod's CPUs until it is named, then to its own."""
    both = StartCPUs(CPUSet.parse("1-2"), is_planned=False)
    cgroup, listing = Cgroup([HELD]), Listing(3)
    pinner, touched = pinned_by_pod(cgroup, listing, {"uid": both, NEW_OWNER: StartCPUs(OWN)})
    assert cgroup.writes == [both.cpus, OWN]
    assert set(touched) == {NEW}
    assert seconds(pinner, OWN) == 0.0


def test_container_that_runs_before_its_name_is_known_is_left_to_a_pass() -> None:
    """A container that runs before it is named is left to the next pass, without a proof."""
    both = StartCPUs(CPUSet.parse("1-2"), is_planned=False)
    pinner, _ = pinned_by_pod(Cgroup([HELD, HELD, RUNNING]), Listing(1000), {"uid": both})
    assert pinner.taken("one", both.cpus) is None


def test_pod_without_a_plan_is_looked_up_by_name() -> None:
    """If the plan does not contain the pod yet, the container is pinned when the runtime reports its name."""
    cgroup = Cgroup([HELD])
    pinned_by_pod(cgroup, Listing(2), {"uid": Unplanned.YET, NEW_OWNER: StartCPUs(OWN)})
    assert cgroup.writes == [OWN]


def test_sandbox_is_no_container() -> None:
    """CRI-O creates a cgroup for a sandbox too; pinning ends when the runtime lists it as a sandbox."""
    pinner, _ = pinned_by_pod(Cgroup([NOBODY]), Listing(2, None), {"uid": StartCPUs(OWN)})
    assert not pinner.is_right("one", OWN)


def test_container_of_another_set_than_its_pod_is_pinned_again() -> None:
    """A container whose CPUs differ from its pod's, such as an ephemeral one, is pinned again when its name is known."""
    cgroup = Cgroup([HELD])
    targets = {"uid": StartCPUs(OWN), NEW_OWNER: StartCPUs(ALL)}
    pinner, _ = pinned_by_pod(cgroup, Listing(1000), targets)

    async def name() -> None:
        pinner.pin(NEW._replace(owner="uid"))
        assert not pinner.is_pinning("one")
        pinner.pin(NEW)
        await ended(pinner)

    virtual_time.run(name())
    assert cgroup.writes == [OWN, ALL]


@pytest.mark.virtual_time
@pytest.mark.parametrize("target", [StartCPUs(OWN), StartCPUs(ALL, is_planned=False)])
async def test_sandbox_with_a_process_gets_its_own_cpuset_back(target: StartCPUs) -> None:
    """A CRI-O sandbox with a process (`shareProcessNamespace`) gets its own cpuset back when it is listed."""
    own = CPUSet.parse("0")
    cgroup, listing = Cgroup([HELD], cpus=own), Sandbox()
    async with asyncio.timeout(60.0):
        pinner_of(cgroup, listing, {"uid": target}.__getitem__).pin(NEW._replace(owner="uid"))
        while len(cgroup.writes) < 1:
            await asyncio.sleep(0.001)
        assert cgroup.cpus == target.cpus
        listing.is_listed = True
        while len(cgroup.writes) < 2:
            await asyncio.sleep(0.001)
    assert cgroup.writes == [target.cpus, own]


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_rewritten", [True, False])
async def test_only_the_sandboxs_unchanged_cpuset_is_restored(is_rewritten: bool) -> None:
    """Only a sandbox's cpuset is restored, and only if it was not rewritten since."""
    cgroup, listing = Cgroup([HELD]), Sandbox()
    pinner = pinner_of(cgroup, listing, {"uid": StartCPUs(OWN)}.__getitem__)
    pinner.pin(NEW._replace(owner="uid"))
    await ended(pinner)
    if is_rewritten:
        cgroup.cpus, listing.is_listed = CPUSet.parse("2"), True
    else:
        listing.owner_then = NEW_OWNER
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.001)
    assert cgroup.writes == [OWN]


@dataclass
class Sandbox(Listing):
    """A runtime that lists a sandbox, or names a container, when the test requires it."""

    questions: int = 1000
    owner_then: Owner | None = None
    is_listed: bool = False

    def known(self, _: str) -> Owner | None:
        """Return the owner, or raise Gone for a listed sandbox."""
        if self.is_listed:
            raise Gone("a sandbox")
        return self.owner_then


# Many containers that wait for their names.


@dataclass
class Crowd:
    """A runtime that lists each container in one answer only."""

    named_by: Callable[[int], Mapping[str, Owner | None]]
    times: list[float] = field(default_factory=list)
    at_once: int = 0

    def known(self, _: str) -> Owner | None:
        """Return None for every container."""
        return None

    async def owner(self, _: str) -> Owner:
        """Raise, because no single container is requested."""
        raise NotImplementedError

    async def created(self, _: Collection[str]) -> Mapping[str, Owner | None]:
        """Return the containers that the runtime lists in this answer."""
        assert not self.at_once
        self.at_once += 1
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        self.at_once -= 1
        return self.named_by(len(self.times))


@pytest.mark.virtual_time
async def test_one_question_serves_all_that_wait() -> None:
    """One request at a time serves all containers without a name, here a hundred, each of which is listed once."""
    names = [f"c{number}" for number in range(100)]
    crowd = Crowd(lambda asked: {names[asked - 1]: Owner("uid", names[asked - 1])})
    question = SharedLookup(crowd)
    found = await asyncio.gather(*(question.name(name, 60.0, is_urgent=True) for name in names))
    assert found == [Owner("uid", name) for name in names]
    gaps = [after - before for before, after in pairwise(crowd.times)]
    assert len(crowd.times) == len(names)
    assert min(gaps) > 0.9 * NAME_PAUSE


def asks_of(containers: int, target: StartCPUs | Unplanned | None, seconds: float) -> float:
    """Return the number of requests per second if the runtime lists none of the containers."""
    crowd = Crowd(lambda _: {})

    async def story() -> float:
        loop = asyncio.get_running_loop()
        pinner = pinner_of(Cgroup([HELD]), crowd, lambda _: target)
        began = loop.time()
        for number in range(containers):
            pinner.pin(NewContainer(f"c{number}", "uid", "/x"))
        await asyncio.sleep(seconds)
        return len(crowd.times) / (loop.time() - began)

    return virtual_time.run(story())


def test_asks_do_not_grow_with_the_containers_that_start() -> None:
    """Requests are rate limited to one per NAME_PAUSE, for one container or a hundred."""
    for target in (Unplanned.YET, StartCPUs(ALL, is_planned=False)):
        assert 0 < asks_of(1, target, 0.2) <= 1.1 / NAME_PAUSE
        assert 0 < asks_of(100, target, 0.2) <= 1.1 / NAME_PAUSE


def test_requests_for_unmanaged_containers_back_off() -> None:
    """Requests for containers without target CPUs are delayed by a backoff of up to LONGEST_PAUSE."""
    assert 0 < asks_of(100, None, 1.0) <= 6 + 1.1 / LONGEST_PAUSE


@pytest.mark.virtual_time
async def test_urgent_container_does_not_wait_for_a_slow_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with target CPUs ends the backoff that containers without target CPUs have caused."""
    monkeypatch.setattr("agent.reconcile.prestart.LONGEST_PAUSE", 3600.0)
    crowd = Crowd(lambda _: {"b": NEW_OWNER} if is_created else {})
    is_created = False
    question = SharedLookup(crowd)
    assert await question.name("a", 0.6, is_urgent=False) is None
    is_created = True
    assert await question.name("b", 0.3, is_urgent=True) == NEW_OWNER


def test_container_of_a_virtual_machine_is_left() -> None:
    """Pinning ends without a write for a container in a virtual machine."""
    cgroup = Cgroup([HELD])
    _, touched = pinned_by_pod(cgroup, VMs(-1, None), {"uid": None})
    assert cgroup.writes == []
    assert touched == [NEW._replace(owner="uid")]


class VMs(Listing):
    """A runtime that names no container of the host."""

    def known(self, _: str) -> Owner | None:
        """Return None for every container."""
        self.questions -= 1 - self.questions % 2
        return None
