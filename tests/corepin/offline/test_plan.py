"""`corepin plan`: a JSON line for each event, a picture after the last one, and errors in one line."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pinning.machine.cpuset import CPUSet
from tests.corepin.documents import CONFIG_MAP
from tests.corepin.plans import GPU_POD, Planning, machine, pod
from tests.environments.process.tree import regular, write_tree
from tests.machines import NAMES, lscpu_text, materialise
from tests.tables import table


def test_a_line_after_each_event(plan: Planning) -> None:
    """Each JSON line is the whole node after its event."""
    first, second = plan.lines(
        pod("name: web, namespace: team", policy="exclusive"),
        pod("name: rt", "3", smt="isolate"),
    )
    web = {"policy": "exclusive", "smtPolicy": "prefer", "cpus": "1,9", "idle": "", "numaNodes": [0]}
    assert first == {
        "pod": "team/web",
        "assignments": {"team/web/main": web},
        "shared": "0,2-8,10-15",
        "refused": [],
    }
    rt = {"policy": "exclusive", "smtPolicy": "isolate", "cpus": "4-6", "idle": "12-14", "numaNodes": [1]}
    assert second["pod"] == "default/rt"
    assert second["assignments"] == {"default/rt/main": rt, "team/web/main": web}
    assert second["shared"] == "0,2-3,7-8,10-11,15"


def test_documents_are_events(plan: Planning) -> None:
    """A repeated name is an update, a deleted pod frees its CPUs, and waiting pods get them, oldest first."""
    events = plan.lines(
        pod("name: a", "12", policy="exclusive"),
        pod("name: b", "4", policy="exclusive"),
        pod("name: c", "4", policy="exclusive"),
        pod("name: a", "12", policy="share"),
        pod("name: a", "12", "deletionTimestamp: 2026-01-01T00:00:00Z", policy="share"),
        pod("name: never-seen", "1", "deletionTimestamp: 2026-01-01T00:00:00Z"),
    )
    assert [[refusal["container"] for refusal in line["refused"]] for line in events] == [
        [],
        ["default/b/main"],
        ["default/b/main", "default/c/main"],
        ["default/b/main", "default/c/main"],
        [],
        [],
    ]
    assert events[1]["refused"][0]["reason"] == "NotEnoughCPUs"
    assert "it runs in the shared set" in events[1]["refused"][0]["message"]
    assert (
        events[0]["assignments"]["default/a/main"]["cpus"]
        == events[3]["assignments"]["default/a/main"]["cpus"]
    )
    assert events[3]["shared"] == "0-15"
    assert (
        sorted(events[4]["assignments"])
        == sorted(events[5]["assignments"])
        == ["default/b/main", "default/c/main"]
    )


def test_names_and_words_are_as_people_read_them(plan: Planning) -> None:
    """Names sort by number (p2 before p10), `share` is named, and text and JSON have the same shared set."""
    pods = (pod("name: p10", policy="share"), pod("name: p2", policy="exclusive"))
    *_, last = plan.lines(*pods)
    assert list(last["assignments"]) == ["default/p2/main", "default/p10/main"]

    legend = [line.split("  ") for line in plan.run(*pods).out.splitlines() if "CPUs  " in line]

    legend_cpus = {name: cpus for _, name, *_, cpus in legend}
    assert list(legend_cpus) == [
        "default/p2/main",
        "default/p10/main (share)",
        "reserved (default)",
        "shared",
    ]
    assert legend_cpus["shared"] == last["shared"]


def test_age_and_names(plan: Planning) -> None:
    """The creationTimestamp decides which pod is older, and pods with generateName get different names."""
    events = plan.lines(
        pod("name: full", "14", policy="exclusive"),
        pod("name: young", "8", policy="exclusive"),
        pod("name: old", "8", "creationTimestamp: 2020-01-01T00:00:00Z, uid: u-1", policy="exclusive"),
        pod("name: full", "1", policy="none"),
        pod("generateName: x-", "1", policy="exclusive"),
        pod("generateName: x-", "1", policy="exclusive"),
    )
    assert sorted(events[3]["assignments"]) == ["default/old/main"]
    assert sorted(events[5]["assignments"]) == ["default/old/main", "default/x-4/main", "default/x-5/main"]


def test_flags_and_configuration(plan: Planning) -> None:
    """The file of --config configures the node, and --reserved overrides it."""
    config = plan.file("reserved: 3\nsmtPolicy: isolate\n")
    (line,) = plan.lines(pod("name: a", policy="exclusive"), flags=("--config", config))
    assert (line["assignments"]["default/a/main"]["cpus"], line["shared"]) == ("0-1", "2-7,10-15")
    flags = ("--config", config, "--reserved", "0-2")
    (line,) = plan.lines(pod("name: a", policy="exclusive"), flags=flags)
    assert line["assignments"]["default/a/main"]["idle"] == "12-13"


@pytest.mark.parametrize("kind", ["file", "tree", "sys"])
def test_the_machine_as_file_or_directory(plan: Planning, tmp_path: Path, kind: str) -> None:
    """JSON of lscpu, a directory that stands for / and one that stands for /sys give the same plan."""
    name = next(name for name in NAMES if len(json.loads(lscpu_text(name))["cpus"]) in range(4, 33))
    root = materialise(name, tmp_path / "root")
    (tmp_path / "l.json").write_text(lscpu_text(name))
    given = {"file": tmp_path / "l.json", "tree": root, "sys": root / "sys"}[kind]
    (line,) = plan.lines(pod("name: a", "1", policy="share"), flags=("--topology", str(given)))
    assert len(line["assignments"]) == 1


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_machine_from_standard_input(
    plan: Planning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: bytes
) -> None:
    """The output of lscpu can be piped, also where an editor or a shell has put a byte order mark before it."""
    text = Path(machine(tmp_path)).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(mark + text)))

    assert "8 cores, 16 CPUs" in plan.run(pod("name: a"), flags=("--topology", "-")).out


def test_the_text_shows_machine_reasons_and_hidden_cost(plan: Planning) -> None:
    """The text has the machine, owners with their policies, refusals, and CPUs that stay idle because of a policy."""
    config = plan.file("pools: {exclusive_cores: 6, shared_cores: 1}\n")
    beside = "- {name: proxy, resources: {requests: {cpu: 700m}}}\n"
    with_proxy = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web, annotations: {smt-policy.corepin.io/container.main: isolate}}\n"
        f"spec:\n  containers:\n  - {{name: main, resources: {{limits: {{cpu: 2}}}}}}\n  {beside}"
    )
    cmk = pod("name: cmk").replace("cpu: 2", "cmk.intel.com/exclusive-cores: 1")
    vm = pod("name: vm", "1", "labels: {kubevirt.io: virt-launcher}").replace("name: main", "name: compute")
    vm = vm.replace("spec: {", 'spec: {nodeSelector: {cpumanager: "true"}, ')
    shared, big = pod("name: s", "1", policy="share"), pod("name: big", "20", policy="exclusive")
    out, _ = plan.run(with_proxy, cmk, vm, shared, big, flags=("--config", config))
    words = " ".join(out.split())
    for text in (
        "2 sockets, 2 NUMA nodes",
        "= pool shared (set aside)",
        "% pool exclusive (free)",
        "default/web/main: exclusive, CPUs 1-2 on NUMA node 0: 2 CPUs, smt-policy isolate (one thread of each core,",
        "default/cmk/main: exclusive, CPUs 3,11 on NUMA node 0: 1 of cmk.intel.com/exclusive-cores, cores of its own",
        "default/vm/compute: exclusive, CPU 4 on NUMA node 1: dedicated CPUs of a virtual machine",
        "default/s/main: share, CPU 12 on NUMA node 1: 1 CPU that other containers may use too",
        "refused: default/big/main: NotEnoughCPUs: wanted 20",
        "hidden cost: default/web/main keeps CPUs 9-10 idle: 2 in addition to those that it runs on",
        "default/web/proxy requests 700m CPU in addition to the pinned containers, and has no CPUs of its own",
    ):
        assert text in words
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


def test_gate_is_no_hidden_cost(plan: Planning) -> None:
    """The gate container of a pod from the cluster holds no CPUs and is not in the output."""
    gate = "spec: {initContainers: [{name: corepin-gate, resources: {requests: {cpu: 200m}}}], "
    out, _ = plan.run(pod("name: web", policy="exclusive").replace("spec: {", gate))
    assert "default/web/main: exclusive" in out
    assert "corepin-gate" not in out


def test_isolated_cpus_and_warnings_are_printed(plan: Planning, tmp_path: Path) -> None:
    """The plan warns a container with several isolated CPUs that the kernel does not balance threads there."""
    write_tree(tmp_path / "root", replace(regular(16), isolated=CPUSet.parse("2,10")))
    pods = pod("name: a", smt="require", policy="exclusive"), pod("name: b", "500m", smt="prefer")
    words = plan.words(*pods, flags=("--topology", str(tmp_path / "root")))
    assert "isolcpus: the kernel does not balance threads there" in words
    assert (
        "warnings: default/b: metadata.annotations[smt-policy.corepin.io/pod]: prefer has no effect" in words
    )


@table(
    "documents, flags, message",
    {
        "not a pod": ((CONFIG_MAP,), (), "ConfigMap c (v1) brings no pods: give pods, workloads"),
        "no name": (("kind: Pod\napiVersion: v1\n",), (), "the pod has no name"),
        "no pod's shape": (
            ("kind: Pod\napiVersion: v1\nmetadata: {name: x}\nspec: {containers: 3}\n",),
            (),
            "Pod x: spec.containers: expected a list, found a number: begin each entry with a dash",
        ),
        "bad YAML": (("kind: [",), (), "documents.yaml:"),
        "bad CPU list": ((pod("name: x"),), ("--reserved", "3-1"), "--reserved: range '3-1'"),
        "empty CPU list": ((pod("name: x"),), ("--reserved", ""), "--reserved: the list is empty"),
        "no such CPU": ((pod("name: x"),), ("--reserved", "99"), "reserved: CPUs 99 do not exist"),
        "everything reserved": ((pod("name: x"),), ("--reserved", "0-15"), "leaves no CPU"),
        "no topology": ((pod("name: x"),), ("--topology", "/nowhere"), "/nowhere: there is no such file"),
        "empty topology": ((pod("name: x"),), ("--topology", "/dev/null"), "lscpu"),
        "endless": ((pod("name: x"),), ("--topology", "/dev/zero"), "larger than 32 MB"),
        "deep": ((pod("name: x"),), ("--topology", "DEEP"), "lscpu: not JSON (nested too deeply"),
        "no sysfs": ((pod("name: x"),), ("--topology", "."), "online is missing: mount sysfs"),
        "no configuration": ((pod("name: x"),), ("--config", "/nowhere"), "/nowhere: there is no such file"),
        "wrong key": ((pod("name: x"),), ("--config", "CONFIG"), "srt: the key is unknown"),
        "two documents": ((pod("name: x"),), ("--config", "TWO"), "the configuration is one document"),
        "topology in Latin-1": ((pod("name: x"),), ("--topology", "LATIN"), "is not UTF-8 text"),
    },
)
def test_mistakes_are_one_line(
    plan: Planning, tmp_path: Path, documents: tuple[str, ...], flags: tuple[str, ...], message: str
) -> None:
    """Every error is printed in one line with exit code 2, never as a traceback."""
    files = {
        "CONFIG": b"srt: spread\n",
        "TWO": b"sort: spread\n---\nsort: packed\n",
        "LATIN": b"\xff{}",
        "DEEP": b"[" * 200_000,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    named = [str(tmp_path / flag) if flag in files else flag for flag in flags]
    assert message in plan.failure(*documents, flags=named)


NEAR = """\
apiVersion: v1
kind: Pod
metadata:
  name: near
  annotations:
    smt-policy.corepin.io/pod: require
    numa-policy.corepin.io/pod: single
    numa-memory.corepin.io/pod: bind
spec:
  containers:
  - {name: app, resources: {limits: {cpu: 2, memory: 2Gi}}}
"""


def test_bound_memory_is_shown(plan: Planning, tmp_path: Path) -> None:
    """JSON and text name the NUMA node that memory is bound to, and warn about a memory limit above its size."""
    root = materialise("qemu-2s4c2t", tmp_path / "machine")
    (root / "sys/devices/system/node/node0/meminfo").write_text("Node 0 MemTotal:  1048576 kB\n")
    (line,) = plan.lines(NEAR, flags=("--topology", str(root)))
    assert line["assignments"]["default/near/app"]["memoryNodes"] == [0]
    text = plan.words(NEAR, flags=("--topology", str(root)))
    assert "on one NUMA node; memory of NUMA node 0 alone" in text
    assert "default/near/app: its memory limit 2048 MiB is above the 1024 MiB of NUMA node 0" in text


def test_the_legend_names_the_source_of_the_reserve(plan: Planning) -> None:
    """The legend says `configured` for a reserve that a flag names, and `default` otherwise."""
    for flags, meaning in (((), "reserved (default)"), (("--reserved", "1"), "reserved (configured)")):
        assert meaning in plan.run(pod("name: x"), flags=flags).out


def test_cpus_are_beside_devices(plan: Planning) -> None:
    """A pod that asks for devices gets free ones, and CPUs beside them; its init container counts with all of them."""
    pods = (GPU_POD.format(name="a", gpus=1), GPU_POD.format(name="b", gpus="junk"), pod("name: c"))
    flags = ("--device", "nvidia.com/gpu=1,1", "--device", "example.com/nic=0+1,-1")

    first, *_ = plan.lines(*pods, flags=flags)

    for container in ("load", "main"):
        found = first["assignments"][f"default/a/{container}"]
        row = {"resource": "nvidia.com/gpu", "count": 1, "nodes": [1], "near": True}
        assert (found["numaNodes"], found["devices"]) == ([1], [row])


@table(
    "flags, reason, text",
    {
        "no devices in the plan": ((), "DevicesUnknown", "name them with --device"),
        "too few devices": (("--device", "nvidia.com/gpu=0"), "DevicesUnknown", "1 free"),
        "too far": (("--device", "nvidia.com/gpu=77,0,77"), "NotNear", "beside nvidia.com/gpu on NUMA node"),
    },
)
def test_a_pod_that_requires_its_devices(
    plan: Planning, flags: tuple[str, ...], reason: str, text: str
) -> None:
    """Under a required device policy a pod without CPUs near its devices is refused, with the reason."""
    word = "exclusive, device-policy.corepin.io/container.main: require"
    given = GPU_POD.replace("exclusive", word).format(name="a", gpus=2).replace("cpu: 2", "cpu: 12")

    (line,) = plan.lines(given, flags=flags)

    (refused,) = (it for it in line["refused"] if it["container"] == "default/a/main")
    assert refused["reason"] == reason
    assert text in refused["message"]


def test_devices_are_shown_with_their_numa_nodes(plan: Planning) -> None:
    """The text says which devices the CPUs are beside, which not, and which have no known NUMA node."""
    nics = GPU_POD.replace("nvidia.com/gpu: {gpus}", "nvidia.com/gpu: {gpus}, example.com/nic: 1")
    large = nics.replace("cpu: 2", "cpu: 10").format(name="large", gpus=1)
    text = plan.words(large, flags=("--device", "nvidia.com/gpu=1", "--device", "example.com/nic=-1"))
    assert (
        "; with 1 example.com/nic, whose NUMA node is not known; not all beside 1 nvidia.com/gpu on NUMA node 1"
        in text
    )


def test_a_numa_node_that_the_machine_lacks_is_a_note(plan: Planning) -> None:
    """Devices of such a NUMA node count as devices without one; a number that the machine has, or -1, causes no note."""
    given = GPU_POD.format(name="a", gpus=1)
    assert (
        "corepin plan: nvidia.com/gpu on NUMA nodes 77,90: no CPUs of this machine are known to be near, so that such a"
        " device counts as one without a node; name NUMA nodes of 0-1, or"
    ) in plan.run(given, flags=("--device", "nvidia.com/gpu=77+90,0,-1")).err
    assert not plan.run(given, flags=("--device", "nvidia.com/gpu=0,-1")).err


def test_free_cpus_beside_the_next_device_are_counted(plan: Planning) -> None:
    """The free CPUs beside the next device are the minimum beside all free devices, and 0 if none is free."""
    flags = ("--device", "nvidia.com/gpu=1,1")
    pods = [GPU_POD.format(name=name, gpus=1) for name in ("a", "b")]
    counted = [line["nearCPUs"] for line in plan.lines(*pods, flags=flags)]
    assert counted == [{"near.corepin.io/nvidia.com.gpu": 6}, {"near.corepin.io/nvidia.com.gpu": 0}]
    text = plan.words(pods[0], flags=flags)
    assert "free beside the next device: 6 CPUs (near.corepin.io/nvidia.com.gpu)" in text


def test_devices_are_free_again_with_their_pod(plan: Planning) -> None:
    """A pod that requests more devices than are free gets none and a warning; a deleted pod frees its devices."""
    gone = GPU_POD.replace("metadata: {{", "metadata: {{deletionTimestamp: 2026-01-01T00:00:00Z, ")
    pods = [GPU_POD.format(name="a", gpus=2), GPU_POD.format(name="b", gpus=1)]
    flags = ("--device", "nvidia.com/gpu=1,0")
    text = plan.words(*pods, flags=flags)
    assert (
        "default/b: container main asks for 1 nvidia.com/gpu, 0 free: the kubelet would refuse the pod"
        in text
    )
    assert "beside 2 nvidia.com/gpu on NUMA nodes 0, 1" in text

    pods.insert(1, gone.format(name="a", gpus=2))
    *_, last = plan.lines(*pods, flags=flags)
    assert [row["count"] for row in last["assignments"]["default/b/main"]["devices"]] == [1]


@table(
    "flag, message",
    {
        "no domain": ("gpu=0", "'gpu' is not the name of a device resource"),
        "a long one is cut": ("a/b=0" + ",0" * 30_000 + ",x", "...': 'x' is not a NUMA node"),
        "no number": ("nvidia.com/gpu=0,x", "'x' is not a NUMA node"),
        "no nodes": ("nvidia.com/gpu", "'' is not a NUMA node"),
        "a node and none": ("nvidia.com/gpu=0+-1", "'0+-1' is not a NUMA node"),
    },
)
def test_a_wrong_device_is_refused(plan: Planning, flag: str, message: str) -> None:
    """A wrong device is refused with flag, error and an example."""
    assert message in plan.failure(pod("name: a"), flags=("--device", flag))


BUDGET = """
apiVersion: v1
kind: Pod
metadata: {name: a, annotations: {cpu-manager.corepin.io/pod: exclusive}}
spec:
  resources: {requests: {cpu: 4}, limits: {cpu: 4}}
  containers:
  - {name: main, image: x, resources: {limits: {cpu: 2}}}
  - {name: log, image: x, resources: {requests: {cpu: 100m}}}
"""


def test_a_pool_is_an_owner_of_its_own(plan: Planning) -> None:
    """The pool of a pod, which is its budget without the slices, is listed and drawn with the containers that run there."""
    (line,) = plan.lines(BUDGET)
    slice_of_main = {
        "policy": "exclusive",
        "smtPolicy": "prefer",
        "cpus": "1,9",
        "idle": "",
        "numaNodes": [0],
    }
    pool = slice_of_main | {"policy": "pod", "cpus": "2,10"}
    assert line["assignments"] == {"default/a/main": slice_of_main, "default/a/(pool)": pool}
    text = plan.words(BUDGET)
    assert "not for pods" not in text
    assert "default/a/(pool): pod, CPUs 2,10 on NUMA node 0: the rest of the pod's budget, for log" in text
    assert "hidden cost" not in text
