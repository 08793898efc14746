"""`corepin cmk init --dry-run` builds the same pools as CMK on the machines of CMK's own tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from corepin.cli import main
from pinning.machine.cpuset import CPUSet
from tests.machines import materialise
from tests.tables import table

Core = tuple[int, ...]
Machine = tuple[list[list[Core]], str]  # cores of each socket, and isolcpus


def quad(isolated: str = "") -> Machine:
    """Return the machine of most of CMK's tests: one socket, cores 0,4 to 3,7."""
    return [[(core, core + 4) for core in range(4)]], isolated


def octo(isolated: str = "") -> Machine:
    """Return one socket with cores 0,8 to 7,15."""
    return [[(core, core + 8) for core in range(8)]], isolated


def adjacent(isolated: str = "") -> Machine:
    """Return two sockets of four cores with adjacent siblings: 0,1 to 6,7 and 8,9 to 14,15."""
    pairs: list[Core] = [(cpu, cpu + 1) for cpu in range(0, 16, 2)]
    return [pairs[:4], pairs[4:]], isolated


def write_tree(root: Path, sockets: list[list[Core]], isolated: str) -> Path:
    """Write a machine's sysfs tree; core ids start at 0 on each socket."""
    system = root / "sys/devices/system"
    cpus = str(CPUSet(cpu for socket in sockets for core in socket for cpu in core))
    files = {"cpu/online": cpus, "cpu/possible": cpus, "cpu/isolated": isolated}
    for number, socket in enumerate(sockets):
        members = str(CPUSet(cpu for core in socket for cpu in core))
        files[f"node/node{number}/cpulist"] = members
        for identity, core in enumerate(socket):
            for cpu in core:
                of_cpu = f"cpu/cpu{cpu}"
                files[f"{of_cpu}/topology/core_cpus_list"] = str(CPUSet(core))
                files[f"{of_cpu}/topology/package_cpus_list"] = members
                files[f"{of_cpu}/topology/core_id"] = str(identity)
                files[f"{of_cpu}/topology/physical_package_id"] = str(number)
                (system / of_cpu).mkdir(parents=True)
                (system / of_cpu / f"node{number}").symlink_to(f"../../node/node{number}")
    for name, text in files.items():
        (system / name).parent.mkdir(parents=True, exist_ok=True)
        (system / name).write_text(f"{text}\n")
    return root


def pools(capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    """Return the output of the command."""
    assert main(["cmk", "init", "--dry-run", *flags]) == 0
    return yaml.safe_load(capsys.readouterr().out)


@table(
    "machine, flags, expected",
    {
        "two exclusive, one shared": (quad(), "2 1 --reserved=3", "exclusive 0,4 1,5; shared 2,6; infra 3,7"),
        "a shared pool is one list": (quad(), "1 2 --reserved=3", "exclusive 0,4; shared 1,5,2,6; infra 3,7"),
        "isolcpus": (quad("1,2,3,5,6,7"), "2 1", "exclusive 1,5 2,6; shared 3,7; infra 0,4"),
        "one core outside of isolcpus": (
            octo("1,2,9,10"),
            "1 1 --excl-non-isolcpus=0 --reserved=7",
            "exclusive 1,9; shared 2,10; exclusive-non-isolcpus 0,8; infra 3,11,4,12,5,13,6,14,7,15",
        ),
        "four cores outside of isolcpus": (
            octo("1,2,9,10"),
            "1 1 --excl-non-isolcpus=0,3-5 --reserved=7",
            "exclusive 1,9; shared 2,10; exclusive-non-isolcpus 0,8 3,11 4,12 5,13; infra 6,14,7,15",
        ),
        "spread over sockets": (
            adjacent("0-3,8-11"),
            "2 2 --exclusive-mode=spread --reserved=15",
            "exclusive 0,1 8,9; shared 2,3 10,11; infra 4,5,6,7 12,13,14,15",
        ),
        "packed": (
            adjacent("0-3,8-11"),
            "3 1 --reserved=15",
            "exclusive 0,1 2,3 8,9; shared 10,11; infra 4,5,6,7 12,13,14,15",
        ),
    },
)
def test_pools_are_cut_as_cmk_cut_them(
    machine: Machine, flags: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each pool has the same CPU lists as CMK's if the same core is left for infra, and no list has a process."""
    root, (exclusive, shared, *more) = write_tree(tmp_path, *machine), flags.split()
    numbers = (f"--num-exclusive-cores={exclusive}", f"--num-shared-cores={shared}")
    shown = pools(capsys, f"--topology={root}", *numbers, *more)
    lists = {pool: [cpus for found in sockets.values() for cpus in found] for pool, sockets in shown.items()}
    wanted = {name: cpus for name, *cpus in map(str.split, expected.split(";"))}
    assert lists == {"exclusive-non-isolcpus": [], **wanted}
    held = [tasks for sockets in shown.values() for found in sockets.values() for tasks in found.values()]
    assert not any(held)


def test_machine_of_cmks_manual(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of CMK's manual, 8 cores with `isolcpus=0-4,8-12`, gets CMK's pools without a flag."""
    root = write_tree(tmp_path, *octo("0-4,8-12"))
    assert main(["cmk", "init", "--dry-run", f"--topology={root}"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out) == {
        "exclusive": {0: {"0,8": [], "1,9": [], "2,10": [], "3,11": []}},
        "exclusive-non-isolcpus": {0: {}},
        "infra": {0: {"5,13,6,14,7,15": []}},
        "shared": {0: {"4,12": []}},
    }
    assert printed.err == "corepin cmk: CPUs 5,13 are reserved (default)\n"


def test_stranded_and_partly_isolated_cores_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Isolated cores in no pool are named as such, and a partly isolated core counts as not isolated."""
    root = write_tree(tmp_path, *octo("0-4,6,8-12"))
    flags = ("--num-exclusive-cores=3", "--num-shared-cores=1", f"--topology={root}")
    assert main(["cmk", "init", "--dry-run", *flags]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["infra"] == {0: {"5,13,14,7,15": []}}
    assert "CPUs 4,12 are in isolcpus and in no pool, so that nothing runs there: raise" in printed.err
    assert "of the core 6,14 only CPUs 6 are in isolcpus: it counts as not isolated" in printed.err


def test_cores_stand_in_the_order_of_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cores are in numerical order; CMK's was 0, 1, 10, 11, 2."""
    sockets: list[list[Core]] = [[(core, core + 24) for core in range(at, at + 12)] for at in (0, 12)]
    root = write_tree(tmp_path, sockets, "0-11,24-35")
    flags = "--num-exclusive-cores=11 --num-shared-cores=1 --excl-non-isolcpus=12,13 --reserved=23"
    shown = pools(capsys, f"--topology={root}", *flags.split())
    assert list(shown["exclusive"][0]) == [f"{core},{core + 24}" for core in range(11)]
    assert shown["exclusive"][1] == {}
    assert list(shown["exclusive-non-isolcpus"][1]) == ["12,36", "13,37"]
    assert shown["shared"] == {0: {"11,35": []}, 1: {}}
    (infra,) = shown["infra"][1]
    assert infra.startswith("14,38,15,39,16,40")


def test_a_real_xeon_d(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The machine that CMK kept as test data, from its sysfs."""
    root = materialise("xeon-d-1541", tmp_path)
    shown = pools(capsys, f"--topology={root}", "--num-exclusive-cores=3", "--reserved=7")
    assert list(shown["exclusive"][0]) == ["0,8", "1,9", "2,10"]
    assert list(shown["shared"][0]) == ["3,11"]
    assert list(shown["infra"][0]) == ["4,12,5,13,6,14,7,15"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--num-exclusive-cores=4", "--num-exclusive-cores: 4 cores are wanted, 3 are left"),
        (
            "--num-exclusive-cores=3 --num-shared-cores=1",
            "--num-shared-cores: 1 cores are wanted, 0 are left",
        ),
        ("--excl-non-isolcpus=77", "--excl-non-isolcpus: CPUs 77 do not exist"),
        (
            "--num-exclusive-cores=1 --excl-non-isolcpus=0-3",
            "--excl-non-isolcpus: the cores of CPUs 0,4 are reserved",
        ),
        ("--excl-non-isolcpus=a", "--excl-non-isolcpus: "),
        ("--reserved-cpus=77", "--reserved-cpus: CPUs 77 do not exist"),
        ("--reserved-cpus=a", "--reserved-cpus: "),
        ("--reserved-cpus=", "--reserved-cpus: '' names no CPU"),
        ("--reserved-cpus=-1", "--reserved-cpus: '-1' names no CPU"),
        ("--num-exclusive-cores=many", "--num-exclusive-cores: 'many' is not a number of cores"),
        ("--shared-mode=random", "--shared-mode: 'random' is unknown: write packed"),
        ("--reserved-cpus=0-3", "--num-exclusive-cores: 4 cores are wanted, 0 are left"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers that do not fit are refused with flag, number and what the machine has."""
    root = write_tree(tmp_path, *quad())
    assert main(["cmk", "init", "--dry-run", f"--topology={root}", *flags.split()]) == 2
    assert message in capsys.readouterr().err


def test_it_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --dry-run the error points to `cluster-init`; CMK's obsolete flags are accepted with a warning."""
    assert main(["cmk", "init", "--socket-id=0", "--conf-dir=/etc/cmk"]) == 2
    told = capsys.readouterr().err
    assert "--socket-id has no effect: CMK itself read and ignored it" in told
    assert "--conf-dir has no effect" in told
    assert (
        "add --dry-run to see the pools, and set the numbers of the cluster with `corepin cmk cluster-init`"
        in told
    )


def test_lscpus_json_serves_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON of lscpu is accepted as the machine, here two sockets without SMT."""
    cpus = [
        {
            "cpu": cpu,
            "node": None,
            "socket": cpu // 4,
            "core": cpu,
            "l1d:l1i:l2:l3": f"{cpu}:{cpu}:{cpu}:{cpu // 4}",
            "online": True,
        }
        for cpu in range(8)
    ]
    file = tmp_path / "lscpu.json"
    file.write_text(json.dumps({"cpus": cpus}))
    shown = pools(capsys, f"--topology={file}", "--num-exclusive-cores=4", "--exclusive-mode=spread")
    assert shown["exclusive"] == {0: {"1": [], "2": []}, 1: {"4": [], "5": []}}
