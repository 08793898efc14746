"""The threads of a virtual machine as a value."""

import pytest

from pinning.guests.threads import VMM, Role, Task, VMThread, VMThreads, guest_id

QEMU = VMM(pid=100, started=7, kind="qemu")
THREADS = (
    VMThread(100, Role.EMULATOR, "qemu-system-x86"),
    VMThread(101, Role.VCPU, "CPU 0/KVM", 0),
    VMThread(103, Role.VCPU, "CPU 7/KVM", 7),  # plugged first
    VMThread(104, Role.VCPU, "CPU 6/KVM", 6),
    VMThread(105, Role.IOTHREAD, "IO iothread1"),
)


def test_vcpus_are_in_the_order_of_their_indexes() -> None:
    """An index orders the vCPUs: after hotplug it is neither the order of the ids nor without gaps."""
    assert VMThreads(QEMU, THREADS, "names").vcpus == (101, 104, 103)


def test_unidentified_vcpus_are_none() -> None:
    """If only some vCPUs of a machine are identified, it counts as having none."""
    assert VMThreads(QEMU, THREADS, "", "vCPU 5 is not found").vcpus == ()


def test_threads_are_found_by_role() -> None:
    """The threads of a role come in the order of their ids."""
    seen = VMThreads(QEMU, THREADS, "names")

    assert seen.of(Role.VCPU) == (101, 103, 104)
    assert seen.of(Role.EMULATOR) == (100,)
    assert seen.of(Role.PIT) == ()


@pytest.mark.parametrize(
    ("index", "shape", "by_number", "by_apic"),
    [
        pytest.param(7, (1, 1), (7, 0, 0), (7, 0, 0), id="a socket for each, as Kata has them"),
        pytest.param(5, (2, 2), (1, 0, 1), (1, 0, 1), id="powers of two: both are the same"),
        pytest.param(4, (3, 1), (1, 1, 0), (1, 0, 0), id="three cores: an APIC id has a gap"),
        pytest.param(9, (3, 2), (1, 1, 1), (1, 0, 1), id="three cores with threads"),
    ],
)
def test_place_in_the_guest(
    index: int, shape: tuple[int, int], by_number: tuple[int, ...], by_apic: tuple[int, ...]
) -> None:
    """A vCPU is where the guest's shape puts its index, whichever kind of index is known."""
    assert guest_id(index, *shape, is_apic=False) == by_number
    assert guest_id(index, *shape, is_apic=True) == by_apic


def test_places_follow_the_order_of_vcpus() -> None:
    """A vCPU's place in the guest follows from its own index, with gaps after hotplug."""
    assert [place.socket for place in VMThreads(QEMU, THREADS, "names").guest_ids(1, 1)] == [0, 6, 7]


def test_thread_is_known_by_id_and_start() -> None:
    """A reused id is another thread; another folder in /proc may be the same one."""
    thread = VMThread(101, Role.VCPU, started=7, folder=1)
    assert {thread.task} == {Task(101, 7, 2)}
    assert thread.task not in {Task(101, 8, 1), Task(102, 7, 1)}


def test_own_threads_are_those_of_the_process() -> None:
    """Threads of the kernel and of helper processes are another process's."""
    threads = (VMThread(100, Role.EMULATOR, process=100), VMThread(7, Role.VHOST, process=7))
    seen = VMThreads(QEMU, threads, "names")
    assert seen.own == threads[:1]
    assert seen.own_ids == {100}
