"""The agent's configuration by its node's group label: read, saved and waited for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from agent.config import AgentConfig, ApiFlags
from agent.group_start import LOOKS, ConfigFiles, GroupMemory, GroupStart, ask_label
from agent.kubelet.policy import read_kubelet_policy
from agent.report.waiting import write_waiting
from apiserver.access import Access
from apiserver.client import Api
from corepin.errors import CommandFailed
from corepin.node_file import read_node_file
from pinning.contract import KubeletPolicy
from pinning.errors import BadContract
from pinning.machine.cpuset import CPUSet
from pinning.planning.cpu_groups import Waiting
from pinning.planning.node_config import DEFAULT, NodeConfig
from tests.agent.fake_api import NodeApi, api_of

NODE = "/api/v1/nodes/node-1"
NO_KEY = Waiting("NoGroupConfiguration", "no key config.big.yaml")


@pytest.fixture
def files(tmp_path: Path) -> ConfigFiles:
    """Return the mounted ConfigMap: a default, a group, and a group with an invalid file."""
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "config.yaml").write_text("reserved: 0")
    (folder / "config.big.yaml").write_text("reserved: 0-3")
    (folder / "config.broken.yaml").write_text("reserved: [")
    return ConfigFiles(folder / "config.yaml", lambda path: read_node_file(str(path)))


def starting(files: ConfigFiles, *labels: str | None) -> tuple[GroupStart, GroupMemory, list[str | None]]:
    """Return a start that reads these labels in order, its saved choice, and the unread labels."""
    left = list(labels)

    async def ask() -> str | None:
        return left.pop(0)

    memory = GroupMemory(files.default.parent.parent / "state", "node-1")
    return GroupStart(files, memory, ask), memory, left


def test_each_node_reads_its_own_file(files: ConfigFiles) -> None:
    """An invalid file stops only the agents of its own group, with the reason."""
    assert files.groups() == {"big", "broken"}
    assert (files.load("").reserved, files.load("big").reserved) == (CPUSet([0]), CPUSet([0, 1, 2, 3]))
    with pytest.raises(CommandFailed, match=r"config\.broken\.yaml:1"):
        files.load("broken")


def test_without_any_file_a_node_has_the_defaults(tmp_path: Path) -> None:
    """Without any file the defaults apply; a file named by a flag must exist."""
    none = ConfigFiles(tmp_path / "none" / "config.yaml", lambda path: read_node_file(str(path)))
    assert (none.groups(), none.load("")) == (frozenset(), DEFAULT)
    named = ConfigFiles(none.default, none.read, is_named=True)
    with pytest.raises(CommandFailed, match="none"):
        named.load("")


def test_the_group_is_saved_for_a_start_without_the_api_server(files: ConfigFiles) -> None:
    """The saved group is used if the API server is unavailable; a damaged or foreign file is ignored."""
    for label in ("big", "", "big"):
        start, memory, _ = starting(files, label)
        assert asyncio.run(start.choose()) == label
        assert memory.recall() == label
    start, memory, _ = starting(files, None)
    assert asyncio.run(start.choose()) == "big"
    folder = files.default.parent.parent / "state"
    assert (GroupMemory(folder, "node-2").recall(), GroupMemory(folder).recall()) == (None, "big")
    for damaged in ("", "[]", "{", '{"node": "node-1", "group": 3}', "[" * 100_000):
        (folder / "cpu-group").write_text(damaged)
        assert memory.recall() is None
    start, *_ = starting(files, None)
    assert isinstance(asyncio.run(start.choose()), Waiting)
    memory.forget()
    memory.forget()
    assert list(folder.iterdir()) == []


def test_start_waits_for_a_missing_key(files: ConfigFiles) -> None:
    """Files are polled often and the label rarely, and the first new file ends the wait.

    5000 nodes with a wrong label send 83 requests a second together, not 1000.
    """
    start, memory, left = starting(files, "late", "late", "big")
    written: list[Waiting] = []
    sleeps: list[float] = []

    async def tell(waiting: Waiting) -> None:
        written.append(waiting)

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        assert start.waiting is not None
        if len(sleeps) == LOOKS + 3:
            (files.default.parent / "config.late.yaml").write_text("")

    assert asyncio.run(start.wait(tell, sleep)) == "late"
    assert (len(sleeps), left, start.waiting, memory.recall()) == (LOOKS + 3, ["big"], None, "late")
    assert [waiting.reason for waiting in written] == ["NoGroupConfiguration"] * 2


def test_a_corrected_label_ends_the_wait_too(files: ConfigFiles) -> None:
    """A corrected label of the node ends the wait for a missing key after a minute."""
    start, _, left = starting(files, "bgi", "big")
    sleeps: list[float] = []

    async def tell(_: Waiting) -> None:
        pass

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    assert asyncio.run(start.wait(tell, sleep)) == "big"
    assert (sum(sleeps), left) == (60.0, [])


def test_unavailable_api_server_is_asked_sooner(files: ConfigFiles) -> None:
    """At a node's first start the label is requested every 15 seconds; without groups there is no wait."""
    start, memory, left = starting(files, None, "")
    sleeps: list[float] = []

    async def tell(waiting: Waiting) -> None:
        assert waiting.reason == "GroupNotKnown"

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    assert asyncio.run(start.wait(tell, sleep)) == ""
    assert (sum(sleeps), left, memory.recall()) == (15.0, [], "")
    memory.forget()
    for group in files.groups():
        (files.default.parent / f"config.{group}.yaml").unlink()
    start, memory, _ = starting(files, None)
    assert asyncio.run(start.choose()) == ""
    assert memory.recall() is None


def test_the_label_is_read_from_the_node() -> None:
    """A node without the label has no group, and a failed request gives None."""
    nested = b'{"metadata":{"labels":{"corepin.io/cpu-group":"big"},"managedFields":[%s]}}'
    answers: list[tuple[int, bytes, str | None]] = [
        (200, b'{"metadata":{"labels":{"corepin.io/cpu-group":"big","a":"b"}}}', "big"),
        (200, nested % (b'{"a":' * 5000 + b"1" + b"}" * 5000), "big"),
        (200, b'{"metadata":{"labels":{"a":"b"}}}', ""),
        (200, b'{"metadata":{}}', ""),
        (200, b"<html>", None),
        (403, b"{}", None),
        (404, b"{}", None),
        (503, b"{}", None),
    ]
    for status, body, expected in answers:
        api = Api(
            Access("https://api.test"),
            "tests",
            httpx.MockTransport(lambda _, status=status, body=body: httpx.Response(status, content=body)),
        )
        assert asyncio.run(ask_label(api, NODE)) == expected


async def test_waiting_is_a_condition_of_the_node() -> None:
    """The condition is written once for each reason, and a failed write is ignored."""
    server = NodeApi()
    async with api_of(server) as api:
        await write_waiting(api, "node-1", NO_KEY)
        await write_waiting(api, "node-1", NO_KEY)
        (condition,) = server.node["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("CorepinDegraded", "NoGroupConfiguration")
        assert "the agent allocates no CPUs: no key config.big.yaml" in condition["message"]
        assert [path for path, _ in server.patches] == [f"{NODE}/status"]
        server.failures = [503]
        await write_waiting(api, "node-1", NO_KEY._replace(message="another"))


@pytest.mark.parametrize(
    ("node", "runtime", "message"),
    [
        pytest.param("", "cri", "--node", id="no node"),
        pytest.param("n", "docker", "--runtime: 'docker'", id="unknown runtime"),
        pytest.param("n", "local", "--pods-dir", id="local without pods"),
    ],
)
def test_impossible_choices_are_refused(tmp_path: Path, node: str, runtime: str, message: str) -> None:
    """The error names the flag to change."""
    with pytest.raises(BadContract, match=message):
        AgentConfig(node, tmp_path, runtime)


@pytest.mark.parametrize(
    ("irq", "config", "found"),
    [
        pytest.param(Path("/irq"), NodeConfig(quiet_workqueues=True), True, id="component and a part"),
        pytest.param(Path("/irq"), NodeConfig(), False, id="component alone, which counts"),
        pytest.param(None, NodeConfig(quiet_interrupts=True), False, id="no component"),
    ],
)
def test_cpus_are_kept_quiet_with_component_and_configuration(
    tmp_path: Path, irq: Path | None, config: NodeConfig, found: bool
) -> None:
    """CPUs are kept quiet only with both the component and the configuration."""
    assert AgentConfig("n", tmp_path, config=config, irq=irq).keeps_quiet is found


def test_kubelet_url_needs_a_token(tmp_path: Path) -> None:
    """A kubelet URL beside a folder of pods needs an API token, because there is no service account."""
    with pytest.raises(BadContract, match="--api-token"):
        AgentConfig("n", tmp_path, pods_dir=tmp_path, kubelet_url="https://n:10250")
    api = ApiFlags("https://api")
    assert AgentConfig("n", tmp_path, pods_dir=tmp_path, kubelet_url="https://n:10250", api=api).kubelet_url


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        pytest.param('{"policyName":"static","checksum":1}', KubeletPolicy.STATIC, id="static"),
        pytest.param('{"policyName":"none"}', KubeletPolicy.NONE, id="none"),
        pytest.param('{"policyName":"other"}', KubeletPolicy.UNKNOWN, id="another word"),
        pytest.param("[]", KubeletPolicy.UNKNOWN, id="no object"),
        pytest.param("{", KubeletPolicy.UNKNOWN, id="damaged"),
        pytest.param(None, KubeletPolicy.UNKNOWN, id="absent"),
    ],
)
def test_policy_of_the_kubelet_is_read(tmp_path: Path, text: str | None, policy: KubeletPolicy) -> None:
    """Any content of the kubelet's file gives a policy and never an error."""
    path = tmp_path / "cpu_manager_state"
    if text is not None:
        path.write_text(text)
    assert read_kubelet_policy(path) is policy


@pytest.mark.parametrize(
    "url", ["", "host:6443", "https://", "ftp://host", "https://host:70000", "https://[::1"]
)
def test_other_api_servers_are_refused(url: str) -> None:
    """The error names the flag and an example."""
    with pytest.raises(BadContract, match=r"--api-server: .*https://HOST:6443"):
        ApiFlags(url)


PROGRAM: Final = "import sys, agent.main; print(*sys.modules)"
# Rooms that the configuration chooses, and modules that only errors or the start of a command need.
LATER: Final = (
    *("agent.cri", "agent.dra", "agent.local", "agent.nri", "agent.vm", "agent.wrappers"),
    *("difflib", "kubeyaml", "pinning.pods.types", "yaml"),
)


def test_main_module_loads_no_room_that_the_configuration_chooses() -> None:
    """The agent's main module imports no implementation of an interface, and nothing that only errors need."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "agent.reconcile.reconciler" in loaded
    assert [it for it in loaded if any(f"{it}.".startswith(f"{room}.") for room in LATER)] == []
