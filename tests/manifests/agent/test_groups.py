"""Two groups of nodes on a real API server, with the agents' own account: ConfigMap keys, waits, labels, rights."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.config import AgentConfig, ApiFlags
from agent.group_start import ConfigFiles
from agent.group_wait import reset_with, started_with
from agent.report.node import NodeReport
from corepin.node_file import read_node_file
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import DEFAULT
from tests.agent.states import source, state_of
from tests.environments import plain_http
from tests.environments.server.catalog import NEWEST
from tests.environments.server.daemon import free_port
from tests.manifests.installed import HERE_NODE, NODES, STRATEGIC, THERE_NODE, Caller, Installed
from tests.manifests.rendered import AGENT

pytestmark = [pytest.mark.server, pytest.mark.parametrize("installed", [NEWEST], indirect=True)]

GROUP = "corepin.io/cpu-group"
CONFIG = f"/api/v1/namespaces/{AGENT}/configmaps/corepin-agent"
SECONDS = 60.0


class Cluster:
    """The nodes, the agents' ConfigMap, and a folder with its keys in place of the kubelet's mount."""

    def __init__(self, installed: Installed, folder: Path) -> None:
        self.installed = installed
        self._folder = folder

    def label(self, node: str, group: str | None) -> None:
        """Set or remove the group label of a node."""
        answer = self.installed.admin.patch(f"{NODES}/{node}", {"metadata": {"labels": {GROUP: group}}})
        assert answer.is_success, answer.text

    def write(self, **groups: str | None) -> None:
        """Write keys of groups into the ConfigMap, and mount it."""
        data = {f"config.{name}.yaml": text for name, text in groups.items()}
        answer = self.installed.admin.patch(CONFIG, {"data": data})
        assert answer.is_success, answer.text
        self._folder.joinpath("node").mkdir(exist_ok=True)
        for key, text in answer.json()["data"].items():
            (self._folder / "node" / key).write_text(text)

    def files(self) -> ConfigFiles:
        """Return the mounted configuration files."""
        return ConfigFiles(self._folder / "node/config.yaml", lambda path: read_node_file(str(path)))

    def agent(self, node: str, caller: Caller, *, url: str = "", port: int = 0) -> AgentConfig:
        """Return the configuration of a node's agent, with a token of its own."""
        token = self._folder / f"{node}.token"
        token.write_text(caller.token)
        api = ApiFlags(url or self.installed.api.url, self.installed.api.ca_file, token)
        listen = ("127.0.0.1", port) if port else None
        return AgentConfig(node=node, state_dir=self._folder / node, api=api, listen=listen)

    def condition(self, node: str) -> Any:
        """Return the node's condition about its agent."""
        shown = self.installed.admin.send("GET", f"{NODES}/{node}").json()
        found = [it for it in shown["status"]["conditions"] if it["type"] == "CorepinDegraded"]
        return found[0] if found else {"reason": "", "message": ""}


@pytest.fixture
def cluster(installed: Installed, tmp_path: Path) -> Iterator[Cluster]:
    """Return the cluster, and restore it afterwards."""
    cluster = Cluster(installed, tmp_path)
    cluster.write(small="reserved: 0", broken="reserved: [")
    yield cluster
    gone = {f"config.{name}.yaml": None for name in ("small", "broken", "big")}
    assert installed.admin.patch(CONFIG, {"data": gone}).is_success
    for node in (HERE_NODE, THERE_NODE):
        cluster.label(node, None)
        condition = {"status": {"conditions": [{"type": "CorepinDegraded", "$patch": "delete"}]}}
        assert installed.admin.patch(f"{NODES}/{node}/status", condition, STRATEGIC).is_success


async def eventually(holds: Callable[[], bool]) -> None:
    """Poll until a condition is true, in a thread, because each poll is a request."""
    async with asyncio.timeout(SECONDS):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


def answered(port: int, path: str) -> tuple[int, str]:
    """Return the status and text of the agent's response; 0 and "" while it does not listen."""
    try:
        response = plain_http.get(f"http://127.0.0.1:{port}{path}")
    except httpx.TransportError:
        return 0, ""
    return response.status_code, response.text


async def test_each_group_starts_with_its_key_and_waits_for_it(cluster: Cluster) -> None:
    """A node starts with the key of its group; while the key is missing its agent is alive and not ready.

    The wait ends without a restart once the key exists; an invalid key of another group is ignored.
    """
    installed, port = cluster.installed, free_port()
    cluster.label(HERE_NODE, "small")
    cluster.label(THERE_NODE, "big")

    here = await started_with(cluster.agent(HERE_NODE, installed.agent), cluster.files())
    assert (here.group, here.config.reserved) == ("small", CPUSet([0]))
    there = cluster.agent(THERE_NODE, installed.other_agent, port=port)
    assert (await reset_with(there, cluster.files())).config == DEFAULT
    starting = asyncio.create_task(started_with(there, cluster.files()))
    await eventually(lambda: cluster.condition(THERE_NODE)["reason"] == "NoGroupConfiguration")
    assert "has no key config.big.yaml" in cluster.condition(THERE_NODE)["message"]
    assert await asyncio.to_thread(answered, port, "/healthz") == (200, "ok\n")
    status, why = await asyncio.to_thread(answered, port, "/readyz")
    assert status == 503
    assert why.startswith(f"waiting: label {GROUP}=big, but the agents' ConfigMap has no key config.big.yaml")
    assert not starting.done()
    await asyncio.to_thread(cluster.write, big="reserved: 0-1")
    found = await asyncio.wait_for(starting, SECONDS)
    assert (found.group, found.config.reserved) == ("big", CPUSet([0, 1]))
    assert await asyncio.to_thread(answered, port, "/healthz") == (0, "")


def test_a_waiting_agent_is_alive_and_ends_on_sigterm(cluster: Cluster, tmp_path: Path) -> None:
    """A waiting agent with PID 1 is healthy, exits on SIGTERM, and has allocated nothing."""
    port, config = free_port(), cluster.agent(HERE_NODE, cluster.installed.agent)
    assert config.api is not None
    cluster.label(HERE_NODE, "big")
    flags = {
        "--node": HERE_NODE,
        "--state-dir": str(tmp_path / "state"),
        "--config": str(cluster.files().default),
        "--api-server": config.api.url,
        "--api-ca": str(config.api.ca_file),
        "--api-token": str(config.api.token_file),
        "--metrics-listen": f"127.0.0.1:{port}",
        "--socket": "off",
    }
    command = [
        str(Path(sys.executable).with_name("corepin")),
        "agent",
        *(word for flag in flags.items() for word in flag),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            asyncio.run(eventually(lambda: "config.big.yaml" in answered(port, "/readyz")[1]))
            process.terminate()
            _, log = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, log
    assert "waiting for the configuration of this node" in log
    assert not (tmp_path / "state").exists()


def test_without_the_api_server_the_last_group_counts(cluster: Cluster) -> None:
    """An agent that cannot reach the API server starts with its last known group."""
    agent = cluster.agent(HERE_NODE, cluster.installed.agent)
    away = cluster.agent(HERE_NODE, cluster.installed.agent, url="https://127.0.0.1:1")
    for label in ("small", None):
        cluster.label(HERE_NODE, label)
        for config in (agent, away):
            assert asyncio.run(started_with(config, cluster.files())).group == (label or "")


async def test_a_label_that_changes_is_shown(cluster: Cluster) -> None:
    """A group label that changes under a running agent sets a condition on the node until it is changed back."""
    cluster.label(HERE_NODE, "small")

    api = cluster.installed.agent_api()
    report = NodeReport(api, HERE_NODE, source(), interval_seconds=0.05)
    await report.publish(state_of(node=HERE_NODE))
    await eventually(lambda: cluster.condition(HERE_NODE)["reason"] == "GroupChanged")
    assert "is now small, but the agent runs with config.yaml" in cluster.condition(HERE_NODE)["message"]
    await asyncio.to_thread(cluster.label, HERE_NODE, None)
    await eventually(lambda: cluster.condition(HERE_NODE)["reason"] == "NotDegraded")
    await report.reset()
    await api.close()


def test_the_agents_account_gets_no_right_by_groups(cluster: Cluster) -> None:
    """The agent's account may neither label a node nor read or write the ConfigMap."""
    installed = cluster.installed
    for node in (HERE_NODE, THERE_NODE):
        answer = installed.agent.patch(f"{NODES}/{node}", {"metadata": {"labels": {GROUP: "small"}}})
        assert answer.status_code == httpx.codes.FORBIDDEN
    assert installed.agent.send("GET", CONFIG).status_code == httpx.codes.FORBIDDEN
    answer = installed.agent.patch(CONFIG, {"data": {"config.small.yaml": json.dumps({"observe": True})}})
    assert answer.status_code == httpx.codes.FORBIDDEN
