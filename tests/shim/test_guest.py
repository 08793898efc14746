"""`cmk isolate` in the guest of a Kata pod, which has no agent but a file with the pod's status."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.shim.agent import FakeAgent
from tests.shim.roots import Root
from tests.tables import table

if TYPE_CHECKING:
    pass

SHOW = 'echo "$CMK_CPUS_ASSIGNED/$CMK_CPUS_ASSIGNED_MASK/$CMK_CPUS_SHARED/$CMK_CPUS_INFRA"; taskset -p $$'
ALL = "0,1/3/0,1/0,1"
FILE = "/run/corepin/cpus"
pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) != 2, reason="the guest of these tests has the CPUs 0 and 1"
    ),
]


@pytest.fixture
def root(root: Root) -> Root:
    """Return the root of a guest with two sockets, whose CPU numbers are in reverse order."""
    root.add_busybox()
    write_topology(root, {0: (1, 0, "0"), 1: (0, 0, "1")})
    return root


def write_topology(root: Root, places: dict[int, tuple[int, int, str]]) -> None:
    """Write sysfs with socket, core and siblings of each CPU."""
    cpus = "/sys/devices/system/cpu"
    root.write(f"{cpus}/online", "0-1\n")
    for cpu, (socket, core, siblings) in places.items():
        for name, value in (
            ("physical_package_id", socket),
            ("core_id", core),
            ("thread_siblings_list", siblings),
        ):
            root.write(f"{cpus}/cpu{cpu}/topology/{name}", f"{value}\n")


def status(*places: tuple[int, int, int], **vcpus: list[int] | None) -> dict[str, Any]:
    """Return a pod's status with each vCPU's place in the guest and the containers' vCPUs; None is no claim."""
    claimed: dict[str, Any] = {"policy": "exclusive", "cpus": "2-3", "pinned": True}
    containers = {
        name: claimed | {"vcpus": ranks} if ranks is not None else {"pinned": False}
        for name, ranks in vcpus.items()
    }
    guest = [dict(zip(("socket", "core", "thread"), place, strict=True)) for place in places]
    return {"version": 1, "containers": containers, "vm": {"kind": "qemu", "oneToOne": True, "guest": guest}}


SOCKETS = ((0, 0, 0), (1, 0, 0))


def isolated(root: Root, pool: str = "exclusive", *words: str, **env: str) -> tuple[int, str, str]:
    """Return the exit code, the CPUs that the command saw, and the shim's messages."""
    env = {"PATH": "/bin", "CMK_MAP_SECONDS": "0", **env}
    done = root.run("/opt/bin/cmk", "isolate", f"--pool={pool}", *words, "sh", "--", "-c", SHOW, env=env)
    seen = done.stdout.split()
    return done.returncode, " ".join((seen[0], seen[-1])) if seen else "", done.stderr


@pytest.mark.parametrize(
    ("ranks", "seen"), [([0], "1/2/0/0 2"), ([1], "0/1/1/1 1"), ([0, 1], "0,1/3/0,1/0,1 3")], ids=str
)
def test_it_pins_itself_to_the_vcpus_of_its_container(root: Root, ranks: list[int], seen: str) -> None:
    """The shim pins itself to its container's vCPUs by their place in sysfs; vCPUs without an owner are shared."""
    root.write(FILE, json.dumps(status(*SOCKETS, main=ranks)))

    assert isolated(root) == (0, seen, "")


def test_lower_number_is_the_first_thread_of_a_core(root: Root) -> None:
    """In a guest with two threads per core the CPU with the lower number is the first thread."""
    write_topology(root, {0: (0, 0, "0-1"), 1: (0, 0, "0-1")})
    root.write(FILE, json.dumps(status((0, 0, 0), (0, 0, 1), main=[1])))

    assert isolated(root)[1] == "1/2/0/0 2"


def test_container_is_found_by_name(root: Root) -> None:
    """COREPIN_CONTAINER, which the webhook sets, selects the container in the pod's status."""
    root.write(FILE, json.dumps(status(*SOCKETS, main=[0], other=[1])))

    assert isolated(root, COREPIN_CONTAINER="other")[1] == "0/1/0,1/0,1 1"
    code, seen, said = isolated(root)
    assert (code, seen) == (0, f"{ALL} 3")
    assert said.endswith(
        ": COREPIN_CONTAINER does not say which container this is, and several have CPUs of their own\n"
    )


@pytest.mark.parametrize("pool", ["shared", "infra"])
def test_helpers_keep_off_the_vcpus_of_containers(root: Root, pool: str) -> None:
    """The shared pools are the vCPUs without an owner, or all vCPUs if each has one."""
    root.write(FILE, json.dumps(status(*SOCKETS, main=[0], helper=None)))
    assert isolated(root, pool, COREPIN_CONTAINER="helper")[1] == "0/1/0/0 1"

    root.write(FILE, json.dumps(status(*SOCKETS, main=[0], other=[1], helper=None)))
    assert isolated(root, pool, COREPIN_CONTAINER="helper")[1] == f"{ALL} 3"


def test_without_affinity_only_the_environment_is_set(root: Root) -> None:
    """With --no-affinity only the environment is set."""
    root.write(FILE, json.dumps(status(*SOCKETS, main=[0])))

    assert isolated(root, "exclusive", "--no-affinity") == (0, "1/2/0/0 3", "")


def test_container_without_a_claim_is_refused(root: Root) -> None:
    """A container without a claim is refused the exclusive pool with exit code 1 and the missing resource."""
    root.write(FILE, json.dumps(status(*SOCKETS, main=None, other=[0])))

    assert isolated(root, COREPIN_CONTAINER="main") == (
        1,
        "",
        "cmk: this container claims no cores: give it the resource cmk.intel.com/exclusive-cores\n",
    )


@table(
    "text, reason",
    {
        "empty": ("", "the agent has not written yet which CPUs its containers have"),
        "half": ("{", "the agent has not written yet which CPUs its containers have"),
        "not-one-to-one": (
            '{"containers": {"main": {"policy": "exclusive"}}, "vm": {"oneToOne": false}}',
            "its vCPUs have no CPUs of their own (yet)",
        ),
        "another-topology": (
            json.dumps(status((0, 0, 0), (2, 0, 0), main=[1])),
            "this guest does not show the vCPUs that the status of the pod names",
        ),
        "rank-too-high": (
            json.dumps(status(*SOCKETS, main=[2])),
            "this guest does not show the vCPUs that the status of the pod names",
        ),
        "no-vcpus": (json.dumps(status(*SOCKETS, main=[])), "its container has no vCPUs of its own (yet)"),
    },
)
def test_without_a_map_it_starts_unpinned_and_says_so(root: Root, text: str, reason: str) -> None:
    """At the timeout the command starts unpinned, with its real CPU list, and the reason is printed."""
    root.write(FILE, text)
    code, seen, said = isolated(root, COREPIN_CONTAINER="main")

    assert (code, seen) == (0, f"{ALL} 3")
    assert said == f"cmk: starts unpinned on all CPUs that it may use: {reason}\n"


def together(vcpus: int, **held: str) -> str:
    """Return the status of a pod whose vCPUs are not pinned one to one, with its containers' CPUs."""
    containers = {name: {"policy": "exclusive", "cpus": cpus} for name, cpus in held.items()}
    machine = {"vcpus": ["2-3"] * vcpus, "oneToOne": False, "reason": "its numbers differ"}
    return json.dumps({"containers": containers, "vm": machine})


def test_more_vcpus_than_cpus_are_not_waited_for(root: Root) -> None:
    """With more vCPUs than CPUs, which Kata never removes, the command starts at once with the agent's reason."""
    root.write(FILE, together(3, main="2-3"))
    code, seen, said = isolated(root, CMK_MAP_SECONDS="86400")

    assert (code, seen) == (0, f"{ALL} 3")
    assert said == "cmk: starts unpinned on all CPUs that it may use: its numbers differ\n"


@table(
    "vcpus, held",
    {
        "vcpus-are-added": (1, {"main": "2-3"}),
        "vcpus-are-told-apart": (0, {"main": "2-3"}),
        "another-container-starts": (3, {"main": "2-3", "other": "4"}),
    },
)
def test_shim_waits_while_the_map_may_still_come(root: Root, vcpus: int, held: dict[str, str]) -> None:
    """The shim waits while a mismatch may be temporary, and starts the command unpinned at the timeout."""
    root.write(FILE, together(vcpus, **held))
    code, seen, said = isolated(root, CMK_MAP_SECONDS="2")

    assert (code, seen) == (0, f"{ALL} 3")
    assert said.splitlines() == [
        f"cmk: waiting up to 2 s for the CPUs of this container in {FILE}: its numbers differ",
        "cmk: starts unpinned on all CPUs that it may use: its numbers differ",
    ]


def test_map_that_comes_later_is_waited_for(root: Root) -> None:
    """The shim waits for the status file, which the kubelet writes after the start."""
    root.write(FILE, "")
    results: list[tuple[int, str, str]] = []
    thread = threading.Thread(target=lambda: results.append(isolated(root, CMK_MAP_SECONDS="50")))
    thread.start()
    root.write(f"{FILE}.new", json.dumps(status(*SOCKETS, main=[0])))
    (root.folder / f"{FILE[1:]}.new").replace(root.folder / FILE[1:])
    thread.join(60)

    assert [(code, seen) for code, seen, _ in results] == [(0, "1/2/0/0 2")]


def test_an_agent_takes_precedence_over_the_file(root: Root) -> None:
    """If there is an agent, its answer takes precedence over the file."""
    root.write(FILE, json.dumps(status(*SOCKETS, main=[0])))
    agent = FakeAgent(root.install_dir)
    agent.listen()
    try:
        assert isolated(root)[1] == "1,3/A/0/0,2 3"
    finally:
        agent.close()
