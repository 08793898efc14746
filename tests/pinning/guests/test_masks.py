"""Affinity masks of virtual machines' threads: libvirt's pins first, then KubeVirt's choice, Kata's union."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.contract import SMTPolicy
from pinning.guests.masks import (
    BOOT_SECONDS,
    STABLE_SECONDS,
    IOThread,
    Launcher,
    VMMasks,
    VMSeen,
    launcher_masks,
    sandbox_masks,
)
from pinning.guests.threads import Role
from pinning.machine.cpuset import EMPTY, CPUSet, union
from tests.pinning.machines import FLAT

HELD = CPUSet.parse("1-3,5-6")  # the cores 1,5 and 2,6, and CPU 3
SHARED = CPUSet.parse("0,4,7")


def sets(*texts: str) -> tuple[CPUSet, ...]:
    """Return CPU sets by their texts."""
    return tuple(map(CPUSet.parse, texts))


def seen(*vcpus: str, main: str = "1-3,5-6", **facts: object) -> VMSeen:
    """Return a machine with these masks, which ran already."""
    masks = sets(*vcpus)
    known = {"has_run": True, **facts}
    return VMSeen(masks, CPUSet.parse(main), union(masks) | CPUSet.parse(main), **known)  # type: ignore[arg-type]


def launcher(cpus: str = "1-3,5-6", **known: object) -> Launcher:
    """Return a launcher that holds CPUs of FLAT, and whose vCPUs are as many as long ago."""
    facts = {"unchanged_seconds": BOOT_SECONDS, **known}
    return Launcher(FLAT, CPUSet.parse(cpus), **facts)  # type: ignore[arg-type]


def masks_of(machine: VMSeen, place: Launcher) -> VMMasks:
    """Return the masks of a machine for which they are known already."""
    masks = launcher_masks(machine, place)
    assert masks is not None
    return masks


def texts(masks: VMMasks) -> list[str]:
    """Return the planned CPUs of the vCPUs."""
    return list(map(str, masks.vcpus))


def test_libvirts_pins_stay_as_they_are() -> None:
    """Pins one to one inside the set are adopted in whatever order, at once; everything else has the spare CPU."""
    masks = masks_of(seen("6", "1", "2", "5"), launcher(unchanged_seconds=0.0))

    assert texts(masks) == ["6", "1", "2", "5"]
    assert (masks.is_one_to_one, masks.reason, masks.note) == (True, "", "")
    assert str(masks.of(Role.EMULATOR)) == str(masks.of(Role.WORKER)) == str(masks.of(Role.VHOST)) == "3"
    assert str(masks.of(Role.PIT)) == "6"


@pytest.mark.parametrize(
    "vcpus",
    [
        pytest.param(("1", "1"), id="two on one CPU"),
        pytest.param(("1", "4"), id="one outside"),
        pytest.param(("1", "1-3,5-6"), id="one not pinned"),
        pytest.param(("1,2", "5,6"), id="pairs"),
    ],
)
def test_other_pins_are_replaced(vcpus: tuple[str, ...]) -> None:
    """Pins that do not give every vCPU a CPU of its own are replaced by KubeVirt's choice."""
    assert texts(masks_of(seen(*vcpus, threads=2), launcher())) == ["1", "5"]


def test_guest_siblings_get_host_siblings() -> None:
    """Sockets follow from the number of vCPUs, whatever the command line says of them."""
    masks = masks_of(seen(*["1-3,5-6"] * 4, cores=1, threads=2), launcher())

    assert texts(masks) == ["1", "5", "2", "6"]


def test_emulator_keeps_the_cpus_of_its_cgroup() -> None:
    """KubeVirt's `housekeeping` cpuset is the emulator's; the note names I/O threads that were moved there."""
    iothreads = (IOThread(CPUSet.parse("6"), is_housed=True), IOThread(HELD))
    machine = seen("1", "2", "3", "5", main="6", housekeeping=CPUSet.parse("6"), iothreads=iothreads)
    masks = masks_of(machine, launcher())

    assert texts(masks) == ["1", "2", "3", "5"]
    assert list(map(str, masks.iothreads)) == ["6", "6"]
    assert str(masks.emulator) == str(masks.of(Role.WORKER)) == "6"
    assert "1 of its iothreads run with the emulator on CPUs 6" in masks.note


def test_emulator_keeps_the_cpus_that_libvirt_gave_it() -> None:
    """Before KubeVirt's cgroup exists, the first thread's mask has the emulator's CPUs; vCPUs are placed beside it."""
    assert str(masks_of(seen("1", "2", "5", main="3"), launcher()).emulator) == "3"

    placed = masks_of(seen(*["1-3,5-6"] * 4, main="6"), launcher())
    assert texts(placed) == ["1", "5", "2", "3"]
    assert str(placed.emulator) == "6"


def test_mask_with_a_pinned_vcpus_cpu_is_not_the_emulators_own() -> None:
    """A first thread that may run on a vCPU's CPU has none of its own: the emulator gets every spare CPU."""
    masks = masks_of(seen("1", "2", main="2-3"), launcher())

    assert texts(masks) == ["1", "2"]
    assert str(masks.emulator) == "3,5-6"


def test_vcpu_that_was_just_added_is_not_taken_for_pinned() -> None:
    """A vCPU that has just been added has the mask of the first thread, which is not taken for a pin."""
    machine = seen("1", "2", "6", main="6")

    assert launcher_masks(machine, launcher(unchanged_seconds=0.0)) is None
    assert texts(masks_of(machine, launcher())) == ["1", "5", "2"]


@pytest.mark.parametrize(
    ("has_run", "seconds", "is_placed"),
    [
        (True, STABLE_SECONDS, True),
        (True, STABLE_SECONDS - 1, False),
        (False, STABLE_SECONDS, False),
        (False, BOOT_SECONDS, True),
    ],
)
def test_masks_wait_for_a_stable_guest(has_run: bool, seconds: float, is_placed: bool) -> None:
    """No thread is pinned until the guest runs with a stable number of vCPUs, or 30 seconds have passed."""
    machine = seen(*["1-3,5-6"] * 2, has_run=has_run)

    assert (launcher_masks(machine, launcher(unchanged_seconds=seconds)) is not None) is is_placed


def test_unidentified_vcpus_run_together() -> None:
    """A guest with unnamed vCPU threads gets masks after its boot time, on which all run together, with the reason."""
    machine = seen(reason="no names", has_run=False)
    assert launcher_masks(machine, launcher(unchanged_seconds=1.0)) is None

    masks = masks_of(machine, launcher())
    assert (masks.vcpus, masks.is_one_to_one, masks.reason) == ((), False, "no names")
    assert masks.emulator == HELD


def test_an_impossible_guest_topology_is_not_half_pinned() -> None:
    """If the guest's topology does not fit, all vCPUs share the emulator's CPUs, with the reason."""
    masks = masks_of(seen(*["1"] * 6, main="6", housekeeping=CPUSet.parse("6")), launcher())

    assert texts(masks) == ["1-3,5"] * 6
    assert str(masks.emulator) == "6"
    assert not masks.is_one_to_one
    assert masks.reason


def test_a_broken_guest_topology_is_reported() -> None:
    """Three vCPUs are no whole sockets of one core with two threads."""
    masks = masks_of(seen("1", "1", "1", threads=2), launcher())

    assert masks.reason == "its 3 vCPUs are no whole sockets of 1 cores with 2 threads"


def test_erased_pins_come_back() -> None:
    """Pins that a kernel before 6.2 dropped with a cpuset write are restored."""
    machine = seen("6", "1", main="2", iothreads=(IOThread(CPUSet.parse("3")),))
    before = masks_of(machine, launcher())
    erased = seen("1-3,5-6", "1-3,5-6", iothreads=(IOThread(HELD),))
    again = masks_of(erased, launcher(before=before, unchanged_seconds=0.0))

    assert again == before
    assert (str(before.emulator), str(before.iothreads[0])) == ("2", "3")


def test_vcpu_of_a_lost_cpu_moves_alone() -> None:
    """The vCPUs whose CPUs went offline get the replacement CPUs, core by core; all others stay."""
    before = masks_of(seen("5", "6", "2", "1"), launcher("1-2,5-6"))
    lost = seen("5", "1,3,5,7", "1,3,5,7", "1", main="1,3,5,7")

    assert texts(masks_of(lost, launcher("1,3,5,7", before=before))) == ["5", "3", "7", "1"]


def test_a_lost_cpu_without_replacement_ends_all_pins() -> None:
    """With fewer CPUs than vCPUs all pins end."""
    before = masks_of(seen("1", "2"), launcher("1-2"))
    masks = masks_of(seen("1", "1", main="1"), launcher("1", before=before))

    assert (texts(masks), masks.is_one_to_one) == (["1", "1"], False)


def test_isolated_emulator_whose_cpu_is_lost_gets_the_one_that_came_instead() -> None:
    """An isolated emulator whose CPU goes offline gets the replacement CPU, and the pins of vCPUs stay."""
    before = masks_of(seen("1", "2", main="3"), launcher("1-3"))
    masks = masks_of(seen("1", "2", main="1-2,7"), launcher("1-2,7", before=before))

    assert (texts(masks), str(masks.emulator)) == (["1", "2"], "7")


def test_pool_of_iothreads_has_cpus_of_its_own() -> None:
    """Each unpinned I/O thread of a pool gets a CPU; libvirt's pins of I/O threads stay."""
    pool = (IOThread(HELD), IOThread(HELD))
    placed = masks_of(seen(*["1-3,5-6"] * 2, iothreads=pool, has_pool=True), launcher())
    assert texts(placed) == ["1", "5"]
    assert len(union(placed.iothreads)) == 2
    assert union(placed.iothreads).isdisjoint(placed.pins)

    pinned = (IOThread(CPUSet.parse("3")), IOThread(CPUSet.parse("6")))
    adopted = masks_of(seen("1", "2", iothreads=pinned, has_pool=True), launcher())
    assert list(map(str, adopted.iothreads)) == ["3", "6"]
    assert str(adopted.of(Role.IOTHREAD, 1)) == "6"
    assert adopted.of(Role.IOTHREAD, 2) == adopted.emulator


@pytest.mark.parametrize(("smt", "emulator"), [(SMTPolicy.PREFER, "2-3,5-6"), (SMTPolicy.REQUIRE, "2-3,6")])
def test_require_keeps_the_emulator_off_the_cores_of_vcpus(smt: SMTPolicy, emulator: str) -> None:
    """Under `require` everything else runs on other cores, as far as there are any; else on spare CPUs."""
    assert str(masks_of(seen("1"), launcher(smt=smt)).emulator) == emulator


@pytest.mark.parametrize("is_pinned", [True, False])
def test_spare_cpu_is_the_emulators(is_pinned: bool) -> None:
    """Without a pool of iothreads or an isolated emulator, no vCPU shares its CPU while one is spare."""
    vcpus = ("1", "2") if is_pinned else ("1-3", "1-3")
    masks = masks_of(seen(*vcpus, main="1-3", iothreads=(IOThread(CPUSet.parse("1-3")),)), launcher("1-3"))
    assert (len(masks.emulator), masks.is_isolated) == (1, True)
    assert masks.iothreads == (masks.emulator,)


def test_spare_cpus_of_a_pool_are_not_the_emulators() -> None:
    """Spare CPUs of a pool belong to its I/O threads, and the emulator runs on all CPUs."""
    pool = (IOThread(CPUSet.parse("3")),)
    assert str(masks_of(seen("1", "2", iothreads=pool, has_pool=True), launcher("1-3")).emulator) == "1-3"


@pytest.mark.parametrize(
    ("iothread", "wanted"), [("1", "3"), ("1-2", "3"), ("1,3", "3"), ("3", "3"), ("5", "5")]
)
def test_iothread_beside_an_isolated_emulator_is_not_taken_for_pinned(iothread: str, wanted: str) -> None:
    """Libvirt pins it to the emulator's CPU or not at all: on a vCPU's CPU it only inherited a mask."""
    machine = seen("1", "2", main="3", iothreads=(IOThread(CPUSet.parse(iothread)),))
    assert list(map(str, masks_of(machine, launcher("1-3,5")).iothreads)) == [wanted]


def test_iothread_on_a_vcpus_cpu_is_libvirts_where_nothing_is_apart() -> None:
    """An I/O thread on a vCPU's CPU is libvirt's pin if emulator and I/O threads have no CPUs of their own."""
    machine = seen("1", "2", main="1-2", iothreads=(IOThread(CPUSet.parse("2")),))
    assert list(map(str, masks_of(machine, launcher("1-2")).iothreads)) == ["2"]


def test_emulator_beside_vcpus_is_reported_under_require() -> None:
    """Under require the status reports an emulator that has to share a core with vCPUs."""
    machine = seen("1", "2", main="5", housekeeping=CPUSet.parse("5"))
    masks = masks_of(machine, launcher("1-2,5", smt=SMTPolicy.REQUIRE))

    assert "emulator runs on CPUs 5" in masks.note


def test_sandbox_has_one_vcpu_on_each_cpu_when_they_are_as_many() -> None:
    """A sandbox with as many vCPUs as CPUs has one vCPU on each; after a shrink all vCPUs share the rest."""
    machine = seen(*["0-7"] * 4, main="0-7", iothreads=(IOThread(HELD),))
    union_of_both = CPUSet.parse("2-3,6-7")
    masks = sandbox_masks(machine, union_of_both, union_of_both)
    assert texts(masks) == ["2", "3", "6", "7"]
    assert {str(masks.of(role)) for role in Role if role is not Role.VCPU} == {"2-3,6-7"}

    shrunk = sandbox_masks(replace(machine, vcpus=masks.vcpus), CPUSet.parse("2-3"), CPUSet.parse("2-3"))
    assert texts(shrunk) == ["2-3"] * 4
    assert "4 vCPUs and its containers hold 2 CPUs" in shrunk.reason


def test_pins_that_a_sandbox_has_stay() -> None:
    """One-to-one pins that Kata made itself on the same CPUs stay."""
    assert texts(sandbox_masks(seen("3", "2"), CPUSet.parse("2-3"), CPUSet.parse("2-3"))) == ["3", "2"]


def test_threads_that_are_no_vcpus_may_run_in_the_shared_set() -> None:
    """`vmThreads: shared`: vCPUs on the union, all other threads on the shared set, unless vCPUs are unidentified."""
    cpus = CPUSet.parse("2-3")
    masks = sandbox_masks(seen("0-7", "0-7"), cpus, SHARED)
    assert (texts(masks), masks.emulator, masks.of(Role.SHIM)) == (["2", "3"], SHARED, SHARED)

    unknown = sandbox_masks(seen(reason="no names"), cpus, SHARED)
    assert (unknown.emulator, unknown.of(Role.SHIM), unknown.reason) == (cpus, cpus, "no names")


def test_sandbox_that_holds_nothing_follows_the_shared_set() -> None:
    """Threads of a sandbox without CPUs of its own run on the shared set."""
    masks = sandbox_masks(seen("2", "3"), EMPTY, SHARED)

    assert (texts(masks), masks.emulator, masks.reason) == (["0,4,7"] * 2, SHARED, "")


def test_doubtful_cpus_are_never_pinned_one_to_one() -> None:
    """If it is not known which CPUs are exclusive, vCPUs are confined to the union and not pinned one to one."""
    masks = sandbox_masks(seen("2", "3"), CPUSet.parse("2-3"), CPUSet.parse("2-3"), "nobody says")

    assert (texts(masks), masks.reason) == (["2-3"] * 2, "nobody says")


CPUS = st.sets(st.integers(0, 7), min_size=1).map(CPUSet)


@st.composite
def machines(draw: st.DrawFn) -> tuple[VMSeen, Launcher]:
    """Draw a machine in a launcher on FLAT, with masks as the kernel may have them."""
    cpus = draw(CPUS)
    inside = st.sets(st.sampled_from(sorted(cpus)), min_size=1).map(CPUSet)
    vcpus = draw(st.lists(inside, max_size=5))
    iothreads = draw(st.lists(st.builds(IOThread, inside, st.booleans()), max_size=3))
    machine = VMSeen(
        tuple(vcpus),
        draw(inside),
        cpus,
        tuple(iothreads),
        cores=draw(st.integers(1, 2)),
        threads=draw(st.integers(1, 2)),
        has_pool=draw(st.booleans()),
        housekeeping=draw(st.just(EMPTY) | inside),
        has_run=True,
    )
    smt = draw(st.sampled_from([None, *SMTPolicy]))
    return machine, Launcher(FLAT, cpus, smt, None, BOOT_SECONDS)


@given(machines())
def test_masks_are_whole_inside_and_stay(drawn: tuple[VMSeen, Launcher]) -> None:
    """Each thread gets CPUs of the set, vCPUs one each or all the same ones, and a second call changes nothing."""
    machine, place = drawn
    masks = masks_of(machine, place)
    everything = [*masks.vcpus, *masks.iothreads, masks.emulator, masks.pit, masks.aside]
    assert all(cpus and cpus <= place.cpus for cpus in everything)
    assert len(masks.vcpus) == len(machine.vcpus)
    if masks.is_one_to_one:
        assert len(masks.pins) == len(masks.vcpus) == sum(map(len, masks.vcpus))
    else:
        assert len(set(masks.vcpus)) <= 1

    put = tuple(
        IOThread(cpus, thread.is_housed)
        for cpus, thread in zip(masks.iothreads, machine.iothreads, strict=True)
    )
    after = replace(machine, vcpus=masks.vcpus, main=masks.emulator, iothreads=put)
    assert masks_of(after, replace(place, before=masks)).vcpus == masks.vcpus


@pytest.mark.parametrize(("cpus", "plugged"), [("1-2,5-6", 2), ("1-2,5", 1)])
@pytest.mark.parametrize("is_pinned", [False, True])
def test_added_vcpus_get_the_cpus_that_the_emulator_had_alone(
    cpus: str, plugged: int, is_pinned: bool
) -> None:
    """The emulator's own CPUs under `require` go to hot-added vCPUs, since the emulator has no claim on them."""
    held = CPUSet.parse(cpus)
    two = VMSeen((held,) * 2, held, held, has_run=True, seconds=99.0)
    first = launcher_masks(two, Launcher(FLAT, held, SMTPolicy.REQUIRE, None, 99.0))
    assert first
    assert first.is_isolated

    rest = tuple(CPUSet([cpu]) for cpu in first.emulator) if is_pinned else (first.emulator,) * plugged
    more = VMSeen((*first.vcpus, *rest), first.emulator, held, has_run=True, seconds=199.0)
    second = launcher_masks(more, Launcher(FLAT, held, SMTPolicy.REQUIRE, first, 99.0))
    assert second
    assert second.is_one_to_one
    assert (second.pins, second.emulator) == (held, held)


@pytest.mark.parametrize(
    ("role", "rank", "cpus"),
    [
        (Role.VCPU, 1, "2"),
        (Role.VCPU, 2, "0"),  # a vCPU hotplugged after the masks were made
        (Role.IOTHREAD, 0, "3"),
        (Role.IOTHREAD, 1, "0"),
        (Role.PIT, 0, "4"),
        (Role.SHIM, 0, "5"),
        (Role.VIRTIOFSD, 0, "5"),
        (Role.VHOST, 0, "0"),
    ],
)
def test_each_role_has_its_mask(role: Role, rank: int, cpus: str) -> None:
    """Threads without a mask of their own run with the emulator."""
    masks = VMMasks(sets("1", "2"), CPUSet([0]), sets("3"), CPUSet([4]), CPUSet([5]))
    assert str(masks.of(role, rank)) == cpus
