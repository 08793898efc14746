"""`corepin plan --claim`: the CPUs that ResourceClaims would get."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corepin.offline.claims import MOST_CLAIMS
from tests.corepin.plans import GPU_POD, Planning, machine, pod

CLAIMING_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: user, annotations: {qos.gocrane.io/cpu-manager: exclusive}}
spec:
  resourceClaims: [{name: cpu, resourceClaimName: theirs}]
  containers:
  - {name: main, resources: {claims: [{name: cpu}], limits: {cpu: 2}}}
"""


def test_claims_get_whole_cores_of_the_first_device_with_room(plan: Planning) -> None:
    """Each claim adds a line with the claims so far; a claim that does not fit has the free CPUs of each device."""
    first, second, third = plan.lines(flags=("--claim", "3", "--claim", "5500m", "--claim", "4"))
    one = {"asked": 3, "device": "cpudevnuma000", "cpus": "1-2,9-10", "numaNodes": [0]}
    two = {"asked": 6, "device": "cpudevnuma001", "cpus": "4-6,12-14", "numaNodes": [1]}
    assert first == {
        "claim": "claim-1",
        "claims": {"claim-1": one},
        "assignments": {},
        "shared": "0,3-8,11-15",
        "refused": [],
    }
    assert (second["claim"], second["claims"]) == ("claim-2", {"claim-1": one, "claim-2": two})
    refused = third["claims"].pop("claim-3")
    assert third["claims"] == second["claims"]
    assert refused["asked"] == 4
    assert "has room for 4 CPUs, free are 2 on cpudevnuma000, 2 on cpudevnuma001" in refused["refused"]
    assert third["shared"] == second["shared"]


def test_claims_come_after_the_pods(plan: Planning) -> None:
    """Pods are placed first, with their devices, and claims get the remaining CPUs; without --claim there are none."""
    given = pod("name: a", "4", policy="exclusive"), GPU_POD.format(name="b", gpus=1)
    flags = ("--device", "nvidia.com/gpu=1", "--reserved", "0,8")
    *_, before = plan.lines(*given, flags=flags)
    *pods, last = plan.lines(*given, flags=(*flags, "--claim", "2"))
    assert [line.get("pod") for line in pods] == ["default/a", "default/b"]
    assert not any("claims" in line for line in pods)
    assert last["assignments"] == before["assignments"]
    assert last["claims"]["claim-1"]["cpus"] == "3,11"
    assert before["pod"] == "default/b"


def test_cpus_beside_free_devices_are_counted_without_those_of_claims(plan: Planning) -> None:
    """Each claim reduces the free CPUs beside a free device by the CPUs it takes on the device's NUMA node."""
    near, flags = "near.corepin.io/nvidia.com.gpu", ("--claim", "2", "--claim", "2")
    found = plan.lines(flags=("--device", "nvidia.com/gpu=0", *flags))
    assert [line["nearCPUs"] for line in found] == [{near: 4}, {near: 2}]


def test_claim_of_a_pod_is_not_one_of_the_flag(plan: Planning) -> None:
    """A pod that names a claim does not use the CPUs of --claim, because its document has no allocation."""
    first, second = plan.lines(CLAIMING_POD, flags=("--claim", "2"))
    assert first["assignments"] == second["assignments"]
    assert list(first["assignments"]) == ["default/user/main"]
    assert second["claims"]["claim-1"]["cpus"] == "2,10"


def test_text_draws_claims_beside_pods(plan: Planning) -> None:
    """The picture shows each claim, the text its requested CPUs, and a claim without room is refused."""
    flags = ("--claim", "1", "--claim", "2", "--claim", "9")
    text = plan.words(pod("name: a", policy="exclusive"), flags=flags)
    assert "claim-1 2 CPUs 2,10" in text
    assert (
        "claim-1: 2 CPUs 2,10 of cpudevnuma000 on NUMA node 0; 1 asked, and the scheduler counts whole cores"
        in text
    )
    assert "claim-2: 2 CPUs 3,11 of cpudevnuma000 on NUMA node 0 refused:" in text
    assert (
        "claim-3 of 9 CPUs: no device of this node has room for 9 CPUs, free are 8 on cpudevnuma001:" in text
    )


def test_last_core_of_the_shared_set_is_not_offered(plan: Planning) -> None:
    """With a strict reserve one core is kept for other containers, as the agent publishes it."""
    config = plan.file('{reserved: "0-2,8-10", strictReserved: true}')
    lines = plan.lines(flags=("--config", config, *["--claim", "2"] * 5))
    found = lines[-1]["claims"]
    cpus = [found[f"claim-{number}"].get("cpus") for number in range(1, 6)]
    assert cpus == ["3,11", "4,12", "5,13", "6,14", None]
    assert "has room for claims" in found["claim-5"]["refused"]


def test_node_that_only_observes_offers_nothing(plan: Planning) -> None:
    """The agent of a node that only observes is not a driver of claims; the message names the setting."""
    (line,) = plan.lines(flags=("--config", plan.file("observe: true"), "--claim", "2"))
    assert line["claims"]["claim-1"]["refused"].endswith("set observe to false in its configuration")


@pytest.mark.parametrize("amount", ["0", "-2", "many", "", "10G", "8193", "1e99", "x" * 10_000])
def test_wrong_number_is_refused(plan: Planning, amount: str) -> None:
    """A wrong number is refused with the flag, truncated, the accepted range and an example."""
    error = plan.failure(flags=(f"--claim={amount}",))
    assert error.startswith(f"corepin plan: --claim '{amount[:37]}")
    assert "is not a number of CPUs from 1 to 8192: write for example --claim 12" in error
    assert len(error) < 200


def test_too_many_claims_are_refused(plan: Planning) -> None:
    """Too many claims are refused, because each costs a plan of the whole node."""
    error = plan.failure(flags=["--claim=1"] * (MOST_CLAIMS + 1))
    assert f"--claim is given {MOST_CLAIMS + 1} times: give it at most {MOST_CLAIMS} times" in error


def test_neither_pods_nor_claims_is_an_error(plan: Planning) -> None:
    """The error names both flags."""
    error = plan.failure()
    assert "nothing to plan: give pods by -f FILE, or the CPUs of a ResourceClaim by --claim N" in error


def test_every_hash_seed_gives_the_same_claims(plan: Planning, tmp_path: Path) -> None:
    """Equal input gives equal output in each interpreter."""
    program = str(Path(sys.executable).with_name("corepin"))
    words = [
        program,
        "plan",
        "--topology",
        machine(tmp_path),
        "-o",
        "json",
        *["--claim", "3", "--claim", "1", "--claim", "5"],
    ]
    outputs = {
        subprocess.run(
            words, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("0", "4711")
    }
    assert len(outputs) == 1
    assert len(next(iter(outputs)).splitlines()) == 3
