"""`cmk isolate` in a booted guest: the agent's status of a pod, and the guest kernel's CPUs and masks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from agent.node_state import ContainerState, PodState, VMState
from agent.report.pod_status import pod_status
from pinning.contract import CPUPolicy
from pinning.guests.masks import VMSeen, sandbox_masks
from pinning.guests.threads import guest_id
from pinning.machine.cpuset import CPUSet, union
from pinning.planning.run_sets import SandboxSet
from tests.environments.guest.setup import install
from tests.shim.machine import VCPUS, boot

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.smt

FILE: Final = "/run/corepin/cpus"
MAIN, SIDE = CPUSet([8, 10]), CPUSet([9])
ALL: Final = "0,1,2 7 0,1,2 0,1,2"
NOT_WRITTEN: Final = "the agent has not written yet which CPUs its containers have"
NOT_SHOWN: Final = "this guest does not show the vCPUs that the status of the pod names"
SHOW: Final = """#!/bin/busybox sh
allowed=$(/bin/busybox awk '/^Cpus_allowed_list/ { print $2 }' /proc/self/status)
echo "$CMK_CPUS_ASSIGNED $CMK_CPUS_ASSIGNED_MASK $CMK_CPUS_SHARED $CMK_CPUS_INFRA on $allowed"
"""
SCRIPT: Final = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /run/corepin
tell() {{ # case
    sed "s/^/$1 out /" /out
    sed "s/^/$1 err /" /err
}}
isolate() {{ # case, status, CMK_MAP_SECONDS, container, arguments
    name=$1; container=$4; export CMK_MAP_SECONDS=$3
    rm -rf {FILE}; cp -r /status/$2 {FILE}
    shift 4
    COREPIN_CONTAINER=$container /opt/bin/cmk isolate "$@" show >/out 2>/err
    echo "$name code $?"
    tell $name
}}
isolate main one-to-one 0 main --pool=exclusive
isolate side one-to-one 0 side --pool=exclusive
isolate helper one-to-one 0 main --pool=infra
isolate free one-to-one 0 main --pool=exclusive --no-affinity
isolate unclaimed one-to-one 0 other --pool=exclusive
isolate too-many one-vcpu-more 600 main --pool=exclusive
isolate not-all one-container-runs 0 main --pool=exclusive
isolate never nothing 0 main --pool=exclusive
for broken in half bytes deep huge-rank no-place large folder/; do
    isolate ${{broken%/}} $broken 0 main --pool=exclusive
done
rm -rf {FILE}; cp /status/nothing {FILE}
COREPIN_CONTAINER=main CMK_MAP_SECONDS=600 /opt/bin/cmk isolate --pool=exclusive show >/out 2>/err &
until grep -q waiting /err; do usleep 50000; done
cp /status/one-container-runs {FILE}.new; mv {FILE}.new {FILE}
cp /status/one-to-one {FILE}.new; mv {FILE}.new {FILE}
wait $!; echo "late code $?"; tell late
poweroff -f
"""


class Case(NamedTuple):
    """Outcome of one command in the guest."""

    code: str
    seen: str  # its environment, and its affinity in the kernel
    said: str


def status(vcpus: int, live: Mapping[str, CPUSet], to_come: Mapping[str, CPUSet] | None = None) -> bytes:
    """Return the agent's status of a sandbox with `live` containers, and containers that start later."""
    cpus = union(live.values())
    masks = sandbox_masks(VMSeen((cpus,) * vcpus, cpus, cpus), cpus, cpus)
    places = [guest_id(index, 1, 1, is_apic=True) for index in range(VCPUS)]
    vm = VMState(
        "qemu",
        cpus,
        masks.vcpus,
        masks.emulator,
        is_one_to_one=masks.is_one_to_one,
        reason=masks.reason,
        guest_ids=tuple(places) if masks.is_one_to_one else (),
    )
    held = {**live, **(to_come or {})}
    containers = (
        ContainerState(name, CPUPolicy.EXCLUSIVE, cpus=own, sandbox=SandboxSet(cpus, cpus))
        for name, own in held.items()
    )
    text = pod_status(PodState("a", "default", "a", tuple(containers), vm=vm), None)
    assert text
    return text.encode()


ONE_TO_ONE: Final = status(VCPUS, {"main": MAIN, "side": SIDE})
STATUSES: Final = {
    "one-to-one": ONE_TO_ONE,
    "one-vcpu-more": status(VCPUS, {"main": MAIN}),
    "one-container-runs": status(VCPUS, {"main": MAIN}, {"side": SIDE}),
    "nothing": b"",
    "half": ONE_TO_ONE[: len(ONE_TO_ONE) // 2],
    "bytes": bytes(range(256)) * 8,
    "deep": b'{"containers":' * 100_000,
    "huge-rank": ONE_TO_ONE.replace(b'"vcpus":[0,2]', b'"vcpus":[0,4294967298]'),
    "no-place": ONE_TO_ONE.replace(b'"socket":2', b'"socket":3'),
    "large": b" " * 2**18 + ONE_TO_ONE,
    "folder/one-to-one": ONE_TO_ONE,
}


@pytest.fixture(scope="module")
def cases(command: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Case]:
    """Boot once, and return the outcome of each command."""
    files = {f"status/{name}": content for name, content in STATUSES.items()}
    files |= {"opt/bin/cmk": command.read_bytes(), "bin/show": SHOW.encode()}
    lines = boot(install(), tmp_path_factory.mktemp("guest-"), files, SCRIPT)
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        name, kind, text = [*line.split(" ", 2), "", ""][:3]
        found[name][kind].append(text)
    return {
        name: Case(*("\n".join(kinds[kind]) for kind in ("code", "out", "err")))
        for name, kinds in found.items()
        if kinds["code"]
    }


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        pytest.param("main", "0,2 5 0,1,2 0,1,2 on 0,2", id="two-vcpus"),
        pytest.param("side", "1 2 0,1,2 0,1,2 on 1", id="the-other-container"),
        pytest.param("helper", f"{ALL} on 0-2", id="shared-pool"),
        pytest.param("free", "0,2 5 0,1,2 0,1,2 on 0-2", id="without-affinity"),
    ],
)
def test_command_runs_on_the_vcpus_of_its_container(cases: Mapping[str, Case], name: str, seen: str) -> None:
    """The command runs on the guest's CPUs for its container's vCPUs, by its environment and by the kernel."""
    assert cases[name] == ("0", seen, "")


def test_container_without_a_claim_is_refused(cases: Mapping[str, Case]) -> None:
    """A container without a claim is refused the exclusive pool."""
    reason = "cmk: this container claims no cores: give it the resource cmk.intel.com/exclusive-cores"
    assert cases["unclaimed"] == ("1", "", reason)


def test_map_that_comes_later_is_waited_for(cases: Mapping[str, Case]) -> None:
    """The command waits until the status file is complete, and then starts pinned."""
    code, seen, said = cases["late"]
    assert (code, seen) == ("0", "0,2 5 0,1,2 0,1,2 on 0,2")
    assert said.startswith("cmk: waiting up to 600 s ")
    assert "unpinned" not in said


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param(
            "too-many",
            "it has 3 vCPUs and its containers hold 2 CPUs: with Kata's settings default_vcpus = 0 and"
            " overhead_vcpus = 0 the numbers are equal",
            id="one-vcpu-more-for-good",
        ),
        pytest.param(
            "not-all",
            "it has 3 vCPUs and its containers hold 2 CPUs: with Kata's settings default_vcpus = 0 and"
            " overhead_vcpus = 0 the numbers are equal",
            id="other-container-never-runs",
        ),
        pytest.param("never", NOT_WRITTEN, id="never"),
        pytest.param("half", NOT_WRITTEN, id="half"),
        pytest.param("bytes", NOT_WRITTEN, id="bytes"),
        pytest.param("deep", NOT_WRITTEN, id="nested"),
        pytest.param("large", NOT_WRITTEN, id="too-large"),
        pytest.param("folder", NOT_WRITTEN, id="folder"),
        pytest.param("huge-rank", NOT_SHOWN, id="rank-of-no-vcpu"),
        pytest.param("no-place", NOT_SHOWN, id="place-of-no-vcpu"),
    ],
)
def test_command_starts_unpinned_with_the_reason(cases: Mapping[str, Case], name: str, reason: str) -> None:
    """Without the map of vCPUs the command starts on all CPUs, has them in its environment, and prints the reason."""
    said = f"cmk: starts unpinned on all CPUs that it may use: {reason}"
    assert cases[name] == ("0", f"{ALL} on 0-2", said)
