"""`corepin plan`: a JSON line for each event, a picture after the last one, and errors in one line."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corepin.cli import main
from pinning.machine.cpuset import CPUSet
from tests.corepin.documents import CONFIG_MAP, written
from tests.corepin.plans import GPU_POD, machine, pod
from tests.environments.process.tree import regular, write_tree
from tests.machines import NAMES, lscpu_text, materialise
from tests.tables import table


def lines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, *pods: str, flags: tuple[str, ...] = ()
) -> list[Any]:
    """Run `corepin plan -o json` and return its lines."""
    source = written(tmp_path, *pods)
    assert main(["plan", "-f", source, "--topology", machine(tmp_path), "-o", "json", *flags]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_after_each_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each JSON line is the whole node after its event."""
    first, second = lines(
        capsys,
        tmp_path,
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


def test_documents_are_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A repeated name is an update, a deleted pod frees its CPUs, and waiting pods get them, oldest first."""
    events = lines(
        capsys,
        tmp_path,
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


def test_names_and_words_are_as_people_read_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names sort by number (p2 before p10), `share` is named, and text and JSON have the same shared set."""
    pods = (pod("name: p10", policy="share"), pod("name: p2", policy="exclusive"))
    *_, last = lines(capsys, tmp_path, *pods)
    assert list(last["assignments"]) == ["default/p2/main", "default/p10/main"]

    assert main(["plan", "-f", written(tmp_path, *pods), "--topology", machine(tmp_path)]) == 0
    legend = [line.split("  ") for line in capsys.readouterr().out.splitlines() if "CPUs  " in line]

    legend_cpus = {name: cpus for _, name, *_, cpus in legend}
    assert list(legend_cpus) == [
        "default/p2/main",
        "default/p10/main (share)",
        "reserved (default)",
        "shared",
    ]
    assert legend_cpus["shared"] == last["shared"]


def test_age_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The creationTimestamp decides which pod is older, and pods with generateName get different names."""
    events = lines(
        capsys,
        tmp_path,
        pod("name: full", "14", policy="exclusive"),
        pod("name: young", "8", policy="exclusive"),
        pod("name: old", "8", "creationTimestamp: 2020-01-01T00:00:00Z, uid: u-1", policy="exclusive"),
        pod("name: full", "1", policy="none"),
        pod("generateName: x-", "1", policy="exclusive"),
        pod("generateName: x-", "1", policy="exclusive"),
    )
    assert sorted(events[3]["assignments"]) == ["default/old/main"]
    assert sorted(events[5]["assignments"]) == ["default/old/main", "default/x-4/main", "default/x-5/main"]


def test_flags_and_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file of --config configures the node, and --reserved overrides it."""
    config = tmp_path / "node.yaml"
    config.write_text("reserved: 3\nsmtPolicy: isolate\n")
    (line,) = lines(capsys, tmp_path, pod("name: a", policy="exclusive"), flags=("--config", str(config)))
    assert (line["assignments"]["default/a/main"]["cpus"], line["shared"]) == ("0-1", "2-7,10-15")
    flags = ("--config", str(config), "--reserved", "0-2")
    (line,) = lines(capsys, tmp_path, pod("name: a", policy="exclusive"), flags=flags)
    assert line["assignments"]["default/a/main"]["idle"] == "12-13"


@pytest.mark.parametrize("kind", ["file", "tree", "sys"])
def test_the_machine_as_file_or_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """JSON of lscpu, a directory that stands for / and one that stands for /sys give the same plan."""
    name = next(name for name in NAMES if len(json.loads(lscpu_text(name))["cpus"]) in range(4, 33))
    root = materialise(name, tmp_path / "root")
    (tmp_path / "l.json").write_text(lscpu_text(name))
    given = {"file": tmp_path / "l.json", "tree": root, "sys": root / "sys"}[kind]
    source = written(tmp_path, pod("name: a", "1", policy="share"))
    assert main(["plan", "-f", source, "--topology", str(given), "-o", "json"]) == 0
    (line,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert len(line["assignments"]) == 1


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_machine_from_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mark: bytes
) -> None:
    """The output of lscpu can be piped, also where an editor or a shell has put a byte order mark before it."""
    text = Path(machine(tmp_path)).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(mark + text)))

    assert main(["plan", "-f", written(tmp_path, pod("name: a")), "--topology", "-"]) == 0
    assert "8 cores, 16 CPUs" in capsys.readouterr().out


def test_the_text_shows_machine_reasons_and_hidden_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text has the machine, owners with their policies, refusals, and CPUs that stay idle because of a policy."""
    config = tmp_path / "node.yaml"
    config.write_text("pools: {exclusive_cores: 6, shared_cores: 1}\n")
    beside = "- {name: proxy, resources: {requests: {cpu: 700m}}}\n"
    with_proxy = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web, annotations: {smt-policy.corepin.io/container.main: isolate}}\n"
        f"spec:\n  containers:\n  - {{name: main, resources: {{limits: {{cpu: 2}}}}}}\n  {beside}"
    )
    cmk = pod("name: cmk").replace("cpu: 2", "cmk.intel.com/exclusive-cores: 1")
    vm = pod("name: vm", "1", "labels: {kubevirt.io: virt-launcher}").replace("name: main", "name: compute")
    vm = vm.replace("spec: {", 'spec: {nodeSelector: {cpumanager: "true"}, ')
    source = written(
        tmp_path,
        with_proxy,
        cmk,
        vm,
        pod("name: s", "1", policy="share"),
        pod("name: big", "20", policy="exclusive"),
    )
    code = main(["plan", "-f", source, "--topology", machine(tmp_path), "--config", str(config)])
    out = capsys.readouterr().out
    words = " ".join(out.split())
    assert code == 0
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


def test_gate_is_no_hidden_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gate container of a pod from the cluster holds no CPUs and is not in the output."""
    gate = "spec: {initContainers: [{name: corepin-gate, resources: {requests: {cpu: 200m}}}], "
    source = written(tmp_path, pod("name: web", policy="exclusive").replace("spec: {", gate))
    assert main(["plan", "-f", source, "--topology", machine(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "default/web/main: exclusive" in out
    assert "corepin-gate" not in out


def test_isolated_cpus_and_warnings_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan warns a container with several isolated CPUs that the kernel does not balance threads there."""
    write_tree(tmp_path / "root", replace(regular(16), isolated=CPUSet.parse("2,10")))
    source = written(
        tmp_path, pod("name: a", smt="require", policy="exclusive"), pod("name: b", "500m", smt="prefer")
    )
    assert main(["plan", "-f", source, "--topology", str(tmp_path / "root")]) == 0
    words = " ".join(capsys.readouterr().out.split())
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
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    documents: tuple[str, ...],
    flags: tuple[str, ...],
    message: str,
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
    source = written(tmp_path, *documents)
    code = main(["plan", "-f", source, "--topology", machine(tmp_path), *named])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.startswith("corepin plan: ")
    assert captured.err.count("\n") == 1


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


def test_bound_memory_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and text name the NUMA node that memory is bound to, and warn about a memory limit above its size."""
    root = materialise("qemu-2s4c2t", tmp_path / "machine")
    (root / "sys/devices/system/node/node0/meminfo").write_text("Node 0 MemTotal:  1048576 kB\n")
    given = ["plan", "-f", written(tmp_path, NEAR), "--topology", str(root)]

    assert main([*given, "-o", "json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["assignments"]["default/near/app"]["memoryNodes"] == [0]
    assert main(given) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "on one NUMA node; memory of NUMA node 0 alone" in text
    assert "default/near/app: its memory limit 2048 MiB is above the 1024 MiB of NUMA node 0" in text


def test_the_legend_names_the_source_of_the_reserve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The legend says `configured` for a reserve that a flag names, and `default` otherwise."""
    source = written(tmp_path, pod("name: x"))
    for flags, meaning in (((), "reserved (default)"), (("--reserved", "1"), "reserved (configured)")):
        assert main(["plan", "-f", source, "--topology", machine(tmp_path), *flags]) == 0
        assert meaning in capsys.readouterr().out


def test_cpus_are_beside_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pod that asks for devices gets free ones, and CPUs beside them; its init container counts with all of them."""
    pods = (GPU_POD.format(name="a", gpus=1), GPU_POD.format(name="b", gpus="junk"), pod("name: c"))
    flags = ("--device", "nvidia.com/gpu=1,1", "--device", "example.com/nic=0+1,-1")

    first, *_ = lines(capsys, tmp_path, *pods, flags=flags)

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
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    reason: str,
    text: str,
) -> None:
    """Under a required device policy a pod without CPUs near its devices is refused, with the reason."""
    word = "exclusive, device-policy.corepin.io/container.main: require"
    given = GPU_POD.replace("exclusive", word).format(name="a", gpus=2).replace("cpu: 2", "cpu: 12")

    (line,) = lines(capsys, tmp_path, given, flags=flags)

    (refused,) = (it for it in line["refused"] if it["container"] == "default/a/main")
    assert refused["reason"] == reason
    assert text in refused["message"]


def test_devices_are_shown_with_their_numa_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text says which devices the CPUs are beside, which not, and which have no known NUMA node."""
    nics = GPU_POD.replace("nvidia.com/gpu: {gpus}", "nvidia.com/gpu: {gpus}, example.com/nic: 1")
    large = nics.replace("cpu: 2", "cpu: 10").format(name="large", gpus=1)
    given = ["plan", "-f", written(tmp_path, large), "--topology", machine(tmp_path)]

    assert main([*given, "--device", "nvidia.com/gpu=1", "--device", "example.com/nic=-1"]) == 0

    text = " ".join(capsys.readouterr().out.split())
    assert (
        "; with 1 example.com/nic, whose NUMA node is not known; not all beside 1 nvidia.com/gpu on NUMA node 1"
        in text
    )


def test_a_numa_node_that_the_machine_lacks_is_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Devices of such a NUMA node count as devices without one; a number that the machine has, or -1, causes no note."""
    pods = written(tmp_path, GPU_POD.format(name="a", gpus=1))
    given = ["plan", "-f", pods, "--topology", machine(tmp_path), "--device"]
    assert main([*given, "nvidia.com/gpu=77+90,0,-1"]) == 0
    assert (
        "corepin plan: nvidia.com/gpu on NUMA nodes 77,90: no CPUs of this machine are known to be near, so that such a"
        " device counts as one without a node; name NUMA nodes of 0-1, or" in capsys.readouterr().err
    )
    assert main([*given, "nvidia.com/gpu=0,-1"]) == 0
    assert not capsys.readouterr().err


def test_free_cpus_beside_the_next_device_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The free CPUs beside the next device are the minimum beside all free devices, and 0 if none is free."""
    given = ["plan", "--topology", machine(tmp_path), "--device", "nvidia.com/gpu=1,1", "-f"]
    pods = [GPU_POD.format(name=name, gpus=1) for name in ("a", "b")]

    assert main([*given, written(tmp_path, *pods), "-o", "json"]) == 0
    counted = [json.loads(line)["nearCPUs"] for line in capsys.readouterr().out.splitlines()]
    assert counted == [{"near.corepin.io/nvidia.com.gpu": 6}, {"near.corepin.io/nvidia.com.gpu": 0}]

    assert main([*given, written(tmp_path, pods[0])]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "free beside the next device: 6 CPUs (near.corepin.io/nvidia.com.gpu)" in text


def test_devices_are_free_again_with_their_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pod that requests more devices than are free gets none and a warning; a deleted pod frees its devices."""
    gone = GPU_POD.replace("metadata: {{", "metadata: {{deletionTimestamp: 2026-01-01T00:00:00Z, ")
    pods = [GPU_POD.format(name="a", gpus=2), GPU_POD.format(name="b", gpus=1)]
    given = ["plan", "--topology", machine(tmp_path), "--device", "nvidia.com/gpu=1,0"]

    assert main([*given, "-f", written(tmp_path, *pods)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "default/b: container main asks for 1 nvidia.com/gpu, 0 free: the kubelet would refuse the pod"
        in text
    )
    assert "beside 2 nvidia.com/gpu on NUMA nodes 0, 1" in text

    pods.insert(1, gone.format(name="a", gpus=2))
    assert main([*given, "-f", written(tmp_path, *pods), "-o", "json"]) == 0
    *_, last = map(json.loads, capsys.readouterr().out.splitlines())
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
def test_a_wrong_device_is_refused(
    flag: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong device is refused with flag, error and an example."""
    given = ["plan", "-f", written(tmp_path, pod("name: a")), "--topology", machine(tmp_path)]
    assert main([*given, "--device", flag]) == 2
    assert message in capsys.readouterr().err


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


def test_a_pool_is_an_owner_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pool of a pod, which is its budget without the slices, is listed and drawn with the containers that run there."""
    (line,) = lines(capsys, tmp_path, BUDGET)
    slice_of_main = {
        "policy": "exclusive",
        "smtPolicy": "prefer",
        "cpus": "1,9",
        "idle": "",
        "numaNodes": [0],
    }
    pool = slice_of_main | {"policy": "pod", "cpus": "2,10"}
    assert line["assignments"] == {"default/a/main": slice_of_main, "default/a/(pool)": pool}
    assert main(["plan", "-f", written(tmp_path, BUDGET), "--topology", machine(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "not for pods" not in text
    assert "default/a/(pool): pod, CPUs 2,10 on NUMA node 0: the rest of the pod's budget, for log" in text
    assert "hidden cost" not in text
