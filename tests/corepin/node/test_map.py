"""`corepin map`: the agent's state and a node's annotations, drawn, watched and as JSON."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.config import NodeOptions
from agent.node_state import NodeState
from agent.report.desired_node import pools_text, topology_text
from agent.serve.state_json import to_json
from corepin.cli import main
from corepin.node.map import ENTER, HOME, LEAVE
from corepin.node.node_view import view_of_annotations, view_of_state
from pinning.contract import STATUS_POOLS, STATUS_TOPOLOGY
from pinning.machine.cpuset import CPUSet
from pinning.machine.near_rooms import FreeDevices
from pinning.planning.node_config import NodeConfig, StaticPools
from tests.agent.states import EXCLUSIVE, ISOLATE, WHEN, bound, state_of
from tests.corepin.nodes import Serve, agent_socket, kubeconfig, node_objects
from tests.pods import container
from tests.tables import table

SECONDS = 60.0  # a busy machine takes a second or two
STATE = state_of(bound("web", annotations=EXCLUSIVE), bound("db", container("main", 1), annotations=ISOLATE))
FULL = state_of(
    bound("big", container("main", 6), annotations=EXCLUSIVE), bound("late", annotations=EXCLUSIVE)
)
PUBLISHED = {
    STATUS_TOPOLOGY: topology_text(STATE),
    STATUS_POOLS: pools_text(STATE, (), NodeOptions()),
}
VM = {
    "kind": "qemu",
    "emulator": "0",
    "iothreads": [],
    "vhost": "",
    "oneToOne": False,
    "reason": "",
    "note": "",
    "refused": [],
}
POD = """
apiVersion: v1
kind: Pod
metadata: {name: new, annotations: {qos.gocrane.io/cpu-manager: exclusive}}
spec: {containers: [{name: main, resources: {limits: {cpu: 2}}}]}
"""


def to_dict(state: NodeState) -> dict[str, Any]:
    """Return the socket's JSON as values."""
    return dict(json.loads(to_json(state)))


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test the same width and no cluster."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")


Show = Callable[[NodeState | dict[str, Any]], str]


@pytest.fixture
def show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """Return what `corepin map` prints about a state, with single blanks."""

    def shown(state: NodeState | dict[str, Any]) -> str:
        content = to_json(state) if isinstance(state, NodeState) else json.dumps(state).encode()
        with agent_socket(tmp_path / "s", content) as path:
            assert main(["map", "--socket", path]) == 0
        return " ".join(capsys.readouterr().out.split())

    return shown


def pod_of(state: dict[str, Any], name: str = "web") -> dict[str, Any]:
    """Return a pod of a state."""
    return next(pod for pod in state["pods"] if pod["name"] == name)


def with_facts(**facts: Any) -> dict[str, Any]:
    """Return a state in which the container of pod web has these facts too."""
    state = to_dict(STATE)
    pod_of(state)["containers"]["main"] |= facts
    return state


def test_local_node_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each owner has its cores in the picture, and a line with the CPUs that the kernel reports."""
    with agent_socket(tmp_path / "s", to_json(STATE)) as path:
        assert main(["map", "--socket", path]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(
        f"node {STATE.node}, {STATE.runtime}\ncontainers get their CPUs when their cgroup is created\n"
        "claims get CPUs without regard to last-level caches (alignUncore is off)\n\n"
    )
    assert "default/web/main: exclusive on CPUs" in shown
    assert "as the kernel says" in shown
    assert "1 idle (a)" in shown
    assert "attention" not in shown


def test_cache_alignment_is_shown() -> None:
    """The map says that claims are aligned to caches only if the agent publishes `alignUncore`."""
    state = to_dict(replace(STATE, sets=replace(STATE.sets, align_uncore=True)))
    view = view_of_state(json.dumps(state).encode())
    assert view.caches == "claims get CPUs of one last-level cache where one has room (alignUncore)"
    del state["sets"]["alignUncore"]
    assert view_of_state(json.dumps(state).encode()).caches == ""


def test_cpus_beside_devices_are_counted(show: Show) -> None:
    """The map shows free CPUs near devices, for a Node of its allocatable ones, and nothing if the option is off."""
    free = replace(STATE, free_devices=FreeDevices({"nvidia.com/gpu": {CPUSet([1]): 1}}))
    count = free.near_free["near.corepin.io/nvidia.com.gpu"]
    assert f"free beside the next device: {count} CPUs (near.corepin.io/nvidia.com.gpu)" in show(free)

    published = pools_text(free, (), NodeOptions(), {"near.corepin.io/nvidia.com.gpu": 9})
    assert f": {count} of 9 CPUs (near." in view_of_annotations("n", topology_text(free), published).near
    assert view_of_annotations("n", topology_text(STATE), PUBLISHED[STATUS_POOLS]).near == ""


def test_free_cores_of_static_pools_have_their_own_sign(show: Show) -> None:
    """Free cores of static pools are not part of the shared set, and pods can still get them."""
    words = show(state_of(config=NodeConfig(pools=StaticPools(exclusive_cores=2, shared_cores=1))))
    assert "= pool shared (set aside) 2 CPUs 3,7 % pool exclusive (free) 4 CPUs 1-2,5-6" in words
    assert "not for pods" not in words


def test_refused_container_is_shown_with_its_reason(show: Show) -> None:
    """A refused container is shown as not pinned, with the reason."""
    assert "NOT PINNED (NotEnoughCPUs:" in show(FULL)


def test_problems_are_shown(show: Show) -> None:
    """Drift, foreign tasks, conflicts, failures and gaps are each shown in words."""
    devices = [
        {"resource": "nvidia.com/gpu", "count": 2, "nodes": [0, 1], "near": False},
        {"resource": "example.com/nic", "count": 1, "nodes": [0], "near": True},
        {"resource": "example.com/x", "count": 1, "nodes": [], "near": None},
    ]
    state = with_facts(
        intruders=["kube-system/x/y"],
        uncounted="it requests 0 cores",
        devices=devices,
        moreDevices=3,
        devicesUnknown="the kubelet is silent",
    )
    pod_of(state)["containers"]["main"]["applied"] |= {"cpus": "0-7", "outside": 2, "narrowed": 1}
    state |= {"observes": True, "podsComplete": False, "containersComplete": False, "failures": ["a/b/c"]}
    state["otherPlugins"] = ["10-balloons"]
    state["conflicts"] = [{"container": "d/e/f", "rewrites": 3}]
    state["pods"][0]["refusal"] = {"message": "'exlusive' is not a policy"}
    shown = show(state)
    for words in (
        "NUMA node 0, cache 0, devices example.com/nic, nvidia.com/gpu",
        "but the kernel lets it use 0-7",
        "2 tasks allowed on other CPUs",
        "1 task on fewer of them",
        "with kube-system/x/y on its CPUs",
        "uncounted: it requests 0 cores",
        "not beside 2 nvidia.com/gpu on NUMA nodes 0, 1, beside example.com/nic on NUMA node 0",
        "with example.com/x of an unknown NUMA node, with devices of 3 more resources",
        "devices not known (the kubelet is silent)",
        "corepin only observes here",
        "the list of pods is incomplete",
        "the runtime does not answer",
        "'exlusive' is not a policy",
        "another NRI plugin (10-balloons) sets CPUs too",
        "d/e/f: another program rewrote its CPUs 3 times",
        "a/b/c: its CPUs could not be set",
    ):
        assert words in shown


@pytest.mark.parametrize(
    ("vcpus", "shown"),
    [
        (["0", "0", "0", "0"], "4 vCPUs on CPU 0, emulator on 0"),
        (["0-1", "0-1"], "2 vCPUs on CPUs 0-1, emulator on 0"),
        (["3"], "1 vCPU on CPU 3, emulator on 0"),
    ],
)
def test_words_of_a_machine_on_one_cpu_and_of_what_claims_nothing_in_it(
    show: Show, vcpus: list[str], shown: str
) -> None:
    """A VM's line counts vCPUs and names their CPUs; a container beside it runs on the VM's CPUs, not on shared ones."""
    state = to_dict(STATE)
    pod = pod_of(state)
    owner = pod["containers"]["main"]
    pod["containers"]["side"] = {**owner, "policy": ""}
    pod["vm"] = {**VM, "vcpus": vcpus}
    words = show(state)
    assert f"default/web: virtual machine (qemu), {shown}" in words
    assert f"default/web/main: exclusive on CPUs {owner['cpus']}" in words
    assert f"default/web/side: its virtual machine's CPUs {owner['cpus']}" in words
    assert "shared CPU" not in words.partition("default/web/side")[2].partition("default/web:")[0]


def test_threads_of_a_container_that_may_run_on_more_are_counted(show: Show) -> None:
    """The map shows the shared CPUs that a container may use, and that affinity keeps its threads apart."""
    state = with_facts(sharedCpus="0,4")
    web = pod_of(state)["containers"]["main"]
    web["applied"]["cpus"] = str(CPUSet.parse(web["cpus"]) | CPUSet.parse("0,4"))
    web["applied"]["affinity"] = {"home": 2, "others": 1, "both": 0}
    shown = show(state)
    assert "and shared CPUs 0,4, as the kernel says" in shown
    assert "2 tasks bound to its own CPUs by affinity, 1 to the shared CPUs" in shown
    assert "on both" not in shown


NOISE = {
    "kind": "interrupts",
    "since": WHEN,
    "seconds": 20.0,
    "softirqs": 250,
    "waitSeconds": 0.03,
    "otherSlices": 0,
}
EXECS = f"entered by exec {{}}, last at {WHEN}"


@table(
    "facts, expected, absent",
    {
        "its claims, with the number of their CPUs and the NUMA nodes of these": (
            {"origin": "dra", "claims": ["web-cpu", "web-more"], "numaNodes": [0, 1]},
            "of claims web-cpu, web-more (2 CPUs, NUMA nodes 0, 1)",
            "CPUs, NUMA node 0",
        ),
        "noise by the second, of which an unchanged count is 0": (
            {"noise": NOISE},
            "disturbances per second: 12.5 softirqs, 1.5 ms of waiting, 0 time slices of other tasks",
            "device interrupts",
        ),
        "why noise is not counted": ({"noise": NOISE | {"unknown": ["masked"]}}, "not counted: masked", ""),
        "since when noise is above the limit": (
            {"noise": NOISE},
            f"interrupts of devices above the operator's limit since {WHEN}",
            "not counted",
        ),
        "quiet": ({"quiet": True}, "as the kernel says, interrupts kept off", "not kept quiet"),
        "quiet, but not proven": ({"notProven": "too many cgroups"}, "not proven: too many cgroups", ""),
        "not quiet": ({"notQuiet": "no component"}, "not kept quiet: no component", ""),
        "interrupts that stay": (
            {"quiet": True, "kept": ["25 (eth1)"]},
            "other interrupts kept off, interrupts on its CPUs by its irq-policy: 25 (eth1)",
            "",
        ),
        "no interrupt that could stay": (
            {"notKept": "no interrupt has a name like eth7"},
            "irq-policy: no interrupt has a name like eth7",
            "",
        ),
        "one exec": ({"execs": {"time": WHEN, "count": 1}}, EXECS.format("1 time"), "after their start"),
        "execs on CPUs, with their delay": (
            {"execs": {"time": WHEN, "count": 3, "placed": 2, "cpus": "5", "seconds": 0.0123}},
            f"{EXECS.format('3 times')}, 2 of these put on CPUs 5, at the latest 12.3 ms after their start",
            "",
        ),
        "execs that had ended": (
            {"execs": {"time": WHEN, "count": 3, "cpus": "5"}},
            f"{EXECS.format('3 times')}, 0 of these put on CPUs 5",
            "after their start",
        ),
    },
)
def test_map_shows_a_fact_of_a_container(
    show: Show, facts: dict[str, Any], expected: str, absent: str
) -> None:
    """The map shows claims, noise, quiet and execs of a container in words."""
    shown = show(with_facts(**facts))
    assert expected in shown
    assert not absent or absent not in shown


def test_interrupt_that_other_programs_move_back_is_shown(show: Show) -> None:
    """The map names the interrupts that other programs move back onto quiet CPUs."""
    state = with_facts(quiet=True) | {"quiet": {"cpus": "1", "conflicts": ["25 (eth0)"]}}
    assert "interrupt 25 (eth0): another program moved it back three times" in show(state)


@pytest.mark.parametrize("reason", ["the runtime does not report them", "", None])
def test_execs_that_are_not_counted_are_named(show: Show, reason: str | None) -> None:
    """The reason is shown, because a container without listed execs may have some."""
    words = show({**to_dict(STATE), "execsReason": reason})
    assert ("processes that enter by exec are not counted: the runtime does not" in words) == bool(reason)


def test_json_is_the_agents_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON output is the agent's own state."""
    with agent_socket(tmp_path / "s", to_json(STATE)) as path:
        main(["map", "--socket", path, "-o", "json"])

    assert json.loads(capsys.readouterr().out) == to_dict(STATE)


def test_published_node_is_drawn(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --node the same machine is drawn from the node's annotations, and given as JSON."""
    serve(node_objects(PUBLISHED))
    assert main(["map", "--node", "n1"]) == 0
    drawn = capsys.readouterr().out
    assert main(["map", "--node", "n1", "-o", "json"]) == 0

    shown = json.loads(capsys.readouterr().out)
    with agent_socket(tmp_path / "s", to_json(STATE)) as path:
        main(["map", "--socket", path])
    local = capsys.readouterr().out
    assert drawn.split("containers:")[0].splitlines()[1:] == local.split("containers:")[0].splitlines()[2:]
    assert shown == {
        "node": "n1",
        "topology": json.loads(PUBLISHED[STATUS_TOPOLOGY]),
        "pools": json.loads(PUBLISHED[STATUS_POOLS]),
    }


def test_plan_uses_the_published_node(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`corepin plan --node` plans on the machine and with the reserved CPUs that the agent published."""
    (tmp_path / "pod.yaml").write_text(POD)
    serve(node_objects(PUBLISHED))
    assert main(["plan", "-f", str(tmp_path / "pod.yaml"), "--node", "n1", "-o", "json"]) == 0

    line = json.loads(capsys.readouterr().out)
    assert line["assignments"]["default/new/main"]["cpus"] == "1,5"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(b"\n", "has just started", id="no state yet"),
        pytest.param(b"hello\n", "is not a corepin agent", id="somebody else"),
        pytest.param(b"[" * 10_000, "is not a corepin agent", id="deep"),
        pytest.param(b"{}\n", "another version of corepin", id="another version"),
    ],
)
def test_odd_answers_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: bytes, message: str
) -> None:
    """Answers of an older or newer agent, or of another program, on the socket are one line."""
    with agent_socket(tmp_path / "s", answer) as path:
        assert main(["map", "--socket", path]) == 2

    assert message in capsys.readouterr().err


def test_hung_agent_is_not_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that listens and does not answer hangs: the remedy is not to start another one."""
    monkeypatch.setattr("corepin.node.agent_socket.TIMEOUT_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(tmp_path / "s"))
        hung.listen()
        assert main(["map", "--socket", str(tmp_path / "s")]) == 2

    error = capsys.readouterr().err
    assert "the agent did not answer within 0.05 s" in error
    assert "start `corepin agent`" not in error


def test_without_agent_the_remedy_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a socket the error says to start an agent or to name a node."""
    assert main(["map", "--socket", str(tmp_path / "none")]) == 2
    assert "start `corepin agent` here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("annotations", "node", "message"),
    [
        pytest.param(PUBLISHED, "n2", "node n2: the API server answered 404", id="no such node"),
        pytest.param({}, "n1", "no annotation status.corepin.io/topology", id="no agent there"),
        pytest.param(PUBLISHED | {STATUS_POOLS: "{"}, "n1", "damaged", id="damaged"),
        pytest.param(PUBLISHED | {STATUS_POOLS: "[" * 10_000}, "n1", "damaged", id="deep"),
    ],
)
@pytest.mark.parametrize("output", ["text", "json"])
def test_cluster_without_the_node(
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    annotations: dict[str, str],
    node: str,
    message: str,
    output: str,
) -> None:
    """A missing node, a missing annotation and a damaged one are each reported in one line."""
    serve(node_objects(annotations))
    assert main(["map", "--node", node, "-o", output]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_cluster_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing kubeconfig, and a server that cannot be reached, are each an error."""
    assert main(["map", "--node", "n1"]) == 2
    assert "no cluster" in capsys.readouterr().err
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, 1)))
    assert main(["map", "--node", "n1"]) == 2
    assert "the API server is out of reach" in capsys.readouterr().err


@contextmanager
def watching(path: str, output: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run `corepin map --watch` with a descriptor as its output; kill it at the end of the block."""
    code = "import sys; from corepin.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-W", "error", "-c", code, "map", "--socket", path, "--watch"]
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(descriptor: int, words: str) -> str:
    """Read until the words or the end of file; fail after SECONDS without output."""
    text = ""
    while words not in text:
        assert select.select([descriptor], [], [], SECONDS)[0], f"no {words!r} after {text!r}"
        chunk = os.read(descriptor, 65536).decode()
        if not chunk:
            return text
        text += chunk
    return text


def test_watch_shows_each_change_once(tmp_path: Path) -> None:
    """`--watch` into a pipe writes every new picture below the last; Ctrl-C ends it silently."""
    inner, outer = os.pipe()
    answers = (to_json(STATE), to_json(STATE), to_json(FULL))
    with agent_socket(tmp_path / "s", *answers) as path, watching(path, outer) as process:
        os.close(outer)
        text = read_until(inner, "default/late/main")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    os.close(inner)

    assert (process.returncode, errors) == (0, b"")
    assert text.count(f"node {STATE.node}") == 2


def test_watch_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    """`--watch` on a terminal uses the alternate screen, reports a missing agent, and restores the screen."""
    control, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (21, 80))
    with agent_socket(tmp_path / "s", b"\n", to_json(STATE)) as path, watching(path, terminal) as process:
        text = read_until(control, "containers:")
        process.send_signal(signal.SIGINT)
        text += read_until(control, LEAVE)
        _, errors = process.communicate(timeout=SECONDS)
    os.close(terminal)
    os.close(control)

    assert (process.returncode, errors) == (0, b"")
    assert text.startswith(ENTER)
    assert text.rpartition(HOME)[2].count("\r\n") < 21
    assert "has just started" in text
    assert text.endswith(LEAVE)
