"""Boot each machine once, when the first test asks for what it reported."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests import debian
from tests.environments.guest.guest import WITH_DEVICES, GuestMachine, Report, boot
from tests.environments.node.containerd import VERSIONS, _missing, find_programs
from tests.environments.process.cmk_agent import built
from tests.environments.server.build import cache_folder, find
from tests.environments.server.catalog import KUBELET

ISOLATED = "4-7,12-13"
THREE_CORES = GuestMachine(
    "6,sockets=1,cores=3,threads=2",
    "2G",
    seconds=1800.0,
    devices=(
        *("-device", "virtio-rng-pci"),
        *(
            "-drive",
            "file=null-co://,if=none,id=empty,format=raw",
            "-device",
            "nvme,drive=empty,serial=empty",
        ),
    ),
)
CARD = ("-netdev", "user,id=card,restrict=on", "-device", "virtio-net-pci,netdev=card")
HAS_CARD = bool(os.environ.get("COREPIN_NETWORK_CARD"))
QUIET_KILLS = int(os.environ.get("COREPIN_QUIET_KILLS", "1"))
IRQBALANCE_ROUNDS = int(os.environ.get("COREPIN_IRQBALANCE_ROUNDS", "0"))


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that needs an emulated machine."""
    for item in items:
        if {"node", "quiet"} & {*getattr(item, "fixturenames", ())} and item.path.is_relative_to(
            Path(__file__).parent
        ):
            item.add_marker("smt")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of a node with 2 sockets, 8 cores, 16 threads, booted with three isolated cores."""
    find_programs(VERSIONS[-1])
    if find(KUBELET, cache_folder()) is None:
        raise _missing("the kubelet is not built; run `python -m tests.environments.server`")
    built()
    options = f"COREPIN_CACHE={cache_folder().parent} isolcpus={ISOLATED}"
    folder = tmp_path_factory.mktemp("smt-")
    return boot("tests.smt.scenario_node", folder, machine=WITH_DEVICES, kernel_options=options)


@pytest.fixture(scope="session")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of a node with three cores, on which interrupts and other settings are changed."""
    find_programs(VERSIONS[-1])
    options = f"COREPIN_CACHE={cache_folder().parent} QUIET_KILLS={QUIET_KILLS}"
    if IRQBALANCE_ROUNDS:
        with suppress(debian.NotInstalled):  # its test says that it is skipped
            program = debian.unpack("irqbalance") / "usr/sbin/irqbalance"
            options += f" IRQBALANCE={program} IRQBALANCE_ROUNDS={IRQBALANCE_ROUNDS}"
    if HAS_CARD:
        options += " NETWORK_CARD=1"
    options += " GRPC_ENABLE_FORK_SUPPORT=0"  # otherwise forked processes have threads of gRPC
    folder = tmp_path_factory.mktemp("quiet-")
    more = 60.0 * QUIET_KILLS + 10.0 * IRQBALANCE_ROUNDS
    devices = THREE_CORES.devices + CARD * HAS_CARD
    machine = replace(THREE_CORES, seconds=THREE_CORES.seconds + more, devices=devices)
    return boot("tests.smt.scenario_interrupts", folder, machine=machine, kernel_options=options)
