"""The guest's shape from QEMU's command line, as libvirt, Kata and people write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.vm.qemu_args import read_args, read_shape
from pinning.guests.threads import GuestShape


def shape(*arguments: str) -> GuestShape | None:
    """Return the shape from these QEMU arguments."""
    return read_shape(read_args(["qemu-system-x86_64", *arguments]))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", (1, 1, 1, 1)),
        ("-smp 4", (4, 4, 1, 4)),
        ("--smp 4", (4, 4, 1, 4)),
        ("-smp cpus=4", (4, 4, 1, 4)),
        ("-smp 0x4", (4, 4, 1, 4)),
        ("-smp 2,maxcpus=8,sockets=4,cores=2,threads=1", (2, 2, 1, 8)),  # KubeVirt with maxSockets
        ("-smp 4,sockets=1,dies=1,clusters=1,cores=2,threads=2", (4, 2, 2, 4)),  # current libvirt
        ("-smp 1,cores=1,threads=1,sockets=240,maxcpus=240", (1, 1, 1, 240)),  # Kata
        ("-smp 16,sockets=2,dies=2,cores=2,threads=2", (16, 4, 2, 16)),
        ("-smp 8,threads=2", (8, 4, 2, 8)),
        ("-smp 8,cores=2", (8, 2, 1, 8)),
        ("-smp 8,sockets=2,cores=2", (8, 2, 2, 8)),
        ("-smp sockets=2,cores=3", (6, 3, 1, 6)),
        ("-smp 2,maxcpus=6", (2, 6, 1, 6)),
        ("-smp 4 -smp cores=2", (4, 2, 1, 4)),
        ("-machine pc-q35-6.1 -smp 4", (4, 1, 1, 4)),  # old machine types prefer sockets
        ("-M pc-i440fx-5.0,accel=kvm -smp 4", (4, 1, 1, 4)),
        ("-M type=pc-q35-6.1 -smp 8,sockets=2", (8, 4, 1, 8)),
        ("-machine pc-q35-6.2 -smp 4", (4, 4, 1, 4)),
        ("-machine q35,smp.cpus=4,smp.cores=2", (4, 2, 1, 4)),
        ("-append -smp -smp 2", (2, 2, 1, 2)),  # in the guest's own kernel command line
    ],
)
def test_incomplete_topology_is_filled_in_as_by_qemu(
    arguments: str, expected: tuple[int, int, int, int]
) -> None:
    """Missing numbers are filled in as by QEMU, and dies are parts of a socket."""
    found = shape(*arguments.split())

    assert found is not None
    assert (found.vcpus, found.cores, found.threads, found.most_vcpus) == expected


@pytest.mark.parametrize(
    "smp",
    [
        *("0", "-1", "", "four", "4.0", "99999999999999999999", "70000"),
        *(
            "4,cores=0",
            "4,cores=3",
            "8,maxcpus=4",
            "4,sockets=2,cores=1,threads=1",
            "cores=65536,threads=65536",
        ),
    ],
)
def test_invalid_smp_values_give_no_shape(smp: str) -> None:
    """QEMU does not start with any of these values."""
    assert shape("-smp", f"cpus={smp}") is None


def test_too_large_products_give_no_shape() -> None:
    """Each number is valid, but their product is too large."""
    assert shape("-smp", "cores=256,threads=256") is not None
    assert shape("-smp", "sockets=2,cores=256,threads=256") is None
    parts = ("drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads")
    assert shape("-smp", ",".join(f"{part}=65536" for part in parts)) is None


def test_guest_without_options_is_plain() -> None:
    """Without options there is one vCPU, no bound memory, and no thread names."""
    assert shape() == GuestShape(vcpus=1, cores=1, threads=1, most_vcpus=1)
    assert read_args([]).objects == ()


@pytest.mark.parametrize(
    ("backend", "strict"),
    [
        ('{"qom-type":"memory-backend-memfd","id":"ram-node0","host-nodes":[0],"policy":"bind"}', True),
        ("memory-backend-ram,id=ram-node0,size=1G,host-nodes=0-1,policy=bind", True),
        ("memory-backend-file,id=m0,host-nodes.0=1", True),
        ("qom-type=memory-backend-ram,id=m0,host-nodes=0", True),
        ('{"qom-type":"memory-backend-ram","id":"pc.ram","size":536870912}', False),
        ("iothread,id=host-nodes", False),
        ('{"qom-type":["memory-backend-ram"],"host-nodes":[0]}', False),
        ('{"qom-type":', False),
        ("[" * 100_000, False),
        ('{"a":' * 100_000, False),
    ],
)
def test_memory_bound_to_host_nodes_is_strict(backend: str, strict: bool) -> None:
    """Only memory bound to host nodes makes the placement of vCPUs on nodes strict."""
    found = shape("-object", backend)

    assert found is not None
    assert found.strict is strict


def test_iothreads_and_their_pool_are_read() -> None:
    """Iothreads are read in both spellings, and a disk with queue mapping makes them a pool."""
    objects = (
        "-object",
        '{"qom-type":"iothread","id":"iothread1"}',
        "-object",
        "iothread,id=indep_iothread_0",
    )
    alone = shape(*objects, "-device", '{"driver":"virtio-blk-pci","iothread":"iothread1"}')
    mapping = '{"driver":"virtio-blk-pci","iothread-vq-mapping":[{"iothread":"iothread1"},{"iothread":"iothread2"}]}'

    assert alone is not None
    assert (alone.iothreads, alone.iothread_pool) == (("iothread1", "indep_iothread_0"), False)
    for device in (mapping, "virtio-blk-pci,iothread-vq-mapping.0.iothread=iothread1"):
        pooled = shape(*objects, "-device", device)
        assert pooled is not None
        assert pooled.iothread_pool


@pytest.mark.parametrize(
    ("name", "on"),
    [
        ("guest=default_vm1,debug-threads=on", True),
        ("sandbox-0123abcd,debug-threads=on", True),
        ("vm,debug-threads", True),
        ("sandbox-0123abcd", False),
        ("vm,debug-threads=off", False),
        ("vm,,debug-threads=on", False),  # all of it is the guest's name
        ("guest=vm,,,debug-threads=on", True),
    ],
)
def test_thread_names_are_an_option(name: str, on: bool) -> None:
    """A double comma in the guest's name is no separator."""
    found = shape("-name", name)

    assert found is not None
    assert found.names_threads is on


def test_guest_is_named_with_or_without_its_key() -> None:
    """The guest's name is the first value of -name, with or without its key."""
    names = [
        read_args(["q", "-name", text]).name.get("guest") for text in ("guest=a,,b", "a", "debug-threads=on")
    ]

    assert names == ["a,b", "a", None]


def test_long_command_line_is_read() -> None:
    """Options after two megabytes of other arguments are read."""
    found = shape(
        "-append", "x" * 2**20, *["-device", "," * 1000, "-object", "a=b," * 500] * 350, "-smp", "2"
    )

    assert found is not None
    assert found.vcpus == 2


@given(st.lists(st.sampled_from(["-smp", "-object", "-name", "-M", "-device"]) | st.text(max_size=30)))
def test_any_command_line_is_read(arguments: list[str]) -> None:
    """Any arguments give a valid shape or None."""
    found = shape(*arguments)

    assert found is None or found.vcpus <= found.most_vcpus
