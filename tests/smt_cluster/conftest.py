"""Fixtures: the reports of scenarios in emulated machines, each booted once; the summary prints their commands."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from tests.environments.cluster.start import PACKAGES
from tests.environments.guest.cluster import PODS
from tests.environments.guest.guest import GuestMachine, Report, boot
from tests.environments.guest.outside import DEVICES, servers_outside
from tests.environments.node.containerd import install_packages
from tests.environments.process.cmk_agent import built
from tests.environments.server.build import ASSETS, cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _pytest.terminal import TerminalReporter

FOUR_CORES = GuestMachine(
    "8,sockets=1,cores=4,threads=2", "6G", seconds=5400
)  # runs 13 minutes on one idle CPU
# Four exclusive cores, one shared, one outside of isolcpus, one reserved. Runs 12 minutes, one of them for the boot.
SEVEN_CORES = GuestMachine("14,sockets=1,cores=7,threads=2", "6G", seconds=5400)
# Claims need 11 CPUs on the first NUMA node, whose first core is reserved, and 3 CPUs on the second one, which has two
# of its eight possible cores.
TWO_NUMA_NODES = GuestMachine(
    "20,sockets=2,cores=8,threads=2,maxcpus=32", "6G", ("4G,cpus=0-15", "2G,cpus=16-31"), seconds=5400
)
# A CPU for each pod, and five for kubelet, runtime and agent. The boot takes one minute and the pods five on an idle
# machine; beside other programs they take 20.
MANY_CPUS = GuestMachine(
    "128,sockets=2,cores=64,threads=1",
    "6G",
    ("3G,cpus=0-63", "3G,cpus=64-127"),
    seconds=5400,
    devices=DEVICES,
)
MANY_PODS = 109  # one less than the default maxPods of a kubelet
WALKS = {"walk", "cmk_walk", "claim_walk", "device_walk"}
_REPORTS = pytest.StashKey[list[Report]]()


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that needs a scenario's report, so that its servers are built first."""
    for item in items:
        if WALKS & set(getattr(item, "fixturenames", ())) and item.path.parent.name == "smt_cluster":
            for marker in ("smt_cluster", "server", "runtime"):
                item.add_marker(marker)


@pytest.fixture(scope="session")
def walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of the main scenario, on a machine of four cores with two threads each."""
    return _boot(request.config, "tests.smt_cluster.walk", tmp_path_factory, FOUR_CORES)


@pytest.fixture(scope="session")
def cmk_walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of the scenario with CMK's commands and pods, on a machine of seven cores."""
    built()  # the command `cmk`, which the agent installs
    return _boot(request.config, "tests.smt_cluster.cmk_walk", tmp_path_factory, SEVEN_CORES)


@pytest.fixture(scope="session")
def claim_walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of the scenario with ResourceClaims, on a machine of two NUMA nodes."""
    return _boot(request.config, "tests.smt_cluster.claim_walk", tmp_path_factory, TWO_NUMA_NODES)


@pytest.fixture(scope="session")
def device_walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of the scenario in which many pods with devices start at once, on 128 CPUs."""
    # Imported late, because the import is slow.
    from tests.smt_cluster.device_walk import FOLDER, pods

    cache = cache_folder().parent  # because the guest does not see the host's /tmp
    with TemporaryDirectory(dir=cache, prefix="outside-") as name, servers_outside(Path(name)) as server:
        server.create_namespace("corepin-agent")
        with server.client() as client:
            for document in pods(MANY_PODS, "require"):
                client.post(PODS, json=document).raise_for_status()
        options = {FOLDER: name}
        return _boot(request.config, "tests.smt_cluster.device_walk", tmp_path_factory, MANY_CPUS, options)


def _boot(
    config: pytest.Config,
    scenario: str,
    folders: pytest.TempPathFactory,
    machine: GuestMachine,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    install_packages(PACKAGES)
    environment = {"COREPIN_CACHE": str(cache_folder().parent), ASSETS: os.environ.get(ASSETS, ""), **more}
    options = " ".join(f"{name}={value}" for name, value in environment.items() if value)
    report = boot(scenario, folders.mktemp("smt-cluster-"), machine=machine, kernel_options=options)
    config.stash.setdefault(_REPORTS, []).append(report)
    return report


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Print every command of the scenarios with its output, and the time of each step."""
    for report in config.stash.get(_REPORTS, []):
        _show(terminalreporter, report)


def _show(terminalreporter: TerminalReporter, report: Report) -> None:
    terminalreporter.section("what people typed and read in the emulated machine")
    for call in report.facts.get("kubectl", []):
        terminalreporter.write_line(f"$ {call['command']}\n{call['said']}")
    for passed in report.facts.get("passed", []):
        terminalreporter.write_line(f"{passed['uptime']:>6.0f} s after boot: {passed['step']}")
    for failed in report.facts.get("failed", []):
        terminalreporter.section("why the walk came to no end")
        terminalreporter.write_line(failed["traceback"])
        for name, text in failed["logs"].items():
            terminalreporter.write_line(f"--- {name}\n{text}")
