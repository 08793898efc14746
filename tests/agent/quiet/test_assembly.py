"""`Quieting` as it is built from the agent's flags and configuration."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.node_state import QUIET_PENDING
from agent.quiet.assembly import quieting_of
from agent.quiet.interfaces import RecordFile
from agent.quiet.quieting import SWITCHED_OFF, Quieting
from pinning.planning.node_config import NodeConfig
from tests.agent.fakes import FakeNode
from tests.agent.quiet.fakes import process
from tests.agent.quiet.quieting.scene import quiet_of
from tests.agent.states import ISOLATE, bound, state_of
from tests.environments.waiting import background
from tests.pods import container

NOISE = {**ISOLATE, "noise-policy.corepin.io/pod": "quiet"}
STATE = state_of(bound("web", container("main", 1), annotations=NOISE))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param(NodeConfig(), SWITCHED_OFF, id="by default"),
        pytest.param(NodeConfig(quiet_interrupts=True), QUIET_PENDING, id="allowed"),
    ],
)
def test_interrupts_are_moved_only_with_the_option(tmp_path: Path, config: NodeConfig, reason: str) -> None:
    """Interrupts are moved only with the option, so that an upgrade does not write to /proc/irq."""
    agent = AgentConfig("n", tmp_path, irq=tmp_path / "irq", config=config)
    node = FakeNode(tmp_path / "state")
    quieting = quieting_of(agent, node.state_dir, node.machine)
    said = quieting.add(STATE)
    assert (quiet_of(said), said.quiet is None) == (reason, reason == SWITCHED_OFF)
    assert not [*(tmp_path / "state").glob("i*.json")]
    node.close()


@pytest.mark.parametrize("name", RecordFile)
@pytest.mark.parametrize(("version", "is_done"), [(1, False), (2, False), (None, True)])
def test_reset_without_the_component_fails_while_changes_are_left(
    tmp_path: Path, name: str, version: int | None, is_done: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A reset without the component fails while records of this boot are left, and ignores those of another boot."""
    node = FakeNode(tmp_path / "state")
    boot = node.machine.boot_id() if version else "another"
    saved = {"version": version or 1, "bootID": boot, "originals": {"ban": "x"}}
    node.state_dir.beside(name).write_text(json.dumps(saved))
    quieting = quieting_of(AgentConfig("n", tmp_path, irq=None), node.state_dir, node.machine)
    assert quieting.restore() is is_done
    assert ("quiet CPUs not restored" in [it.message for it in caplog.records]) is not is_done
    node.close()


def test_workqueues_alone_are_moved_where_interrupts_are_not_asked_for(tmp_path: Path) -> None:
    """Without the option only workqueues are moved; the status names the switched-off part and a missing mount."""
    folder = tmp_path / "workqueue"
    folder.mkdir()
    (tmp_path / "irq").mkdir()
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-7")
    (folder / "cpumask").write_text("ff")
    config = NodeConfig(quiet_workqueues=True)
    agent = AgentConfig("n", tmp_path, irq=tmp_path / "irq", root=tmp_path, config=config)
    node = FakeNode(tmp_path / "state")
    for workqueues, reason in (
        (None, f"{SWITCHED_OFF}; workqueues: the node's workqueue masks are not mounted"),
        (folder, SWITCHED_OFF),
    ):
        quieting = quieting_of(replace(agent, workqueues=workqueues), node.state_dir, node.machine)
        quieting.add(STATE)
        asyncio.run(shown_round(quieting))
        assert (quiet_of(quieting.add(STATE)) or "").startswith(reason)
    assert (folder / "cpumask").read_text().split() == ["dd"]
    assert quieting.restore()
    assert (folder / "cpumask").read_text().split() == ["ff"]
    node.close()


async def shown_round(quieting: Quieting) -> None:
    """Do one round, until its result is known."""
    shown = asyncio.Event()
    async with background(quieting.run(shown.set)):
        await asyncio.wait_for(shown.wait(), 60)


@pytest.mark.parametrize("is_managed", [True, False])
def test_irqbalance_of_the_operator_is_not_asked(tmp_path: Path, is_managed: bool) -> None:
    """With `quiet.irqbalance: ignore` interrupts are moved without a request to irqbalance.

    Otherwise they are not moved beside an irqbalance that does not answer.
    """
    for folder in ("irq/40", "run", "proc", "sys/devices/system/cpu"):
        (tmp_path / folder).mkdir(parents=True)
    affinity = tmp_path / "irq/40/smp_affinity_list"
    affinity.write_text("0-7")
    (tmp_path / "irq/default_smp_affinity").write_text("ff")
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-7")
    (tmp_path / "run/irqbalance7.sock").touch()
    process(tmp_path / "proc", 7)
    config = NodeConfig(quiet_interrupts=True, manages_irqbalance=is_managed)
    agent = AgentConfig(
        "n", tmp_path, irq=tmp_path / "irq", irqbalance=tmp_path / "run", root=tmp_path, config=config
    )
    node = FakeNode(tmp_path / "state")
    quieting = quieting_of(agent, node.state_dir, node.machine)
    quieting.add(STATE)
    asyncio.run(shown_round(quieting))
    assert affinity.read_text().strip().startswith("0-7" if is_managed else "0,2-4,6-7")
    node.close()


def test_agent_without_the_component_loads_none_of_its_parts() -> None:
    """The agent's main module imports what looks for an earlier agent's records, not the parts that write them."""
    program = "import sys, agent.main; print(*(it for it in sys.modules if it.startswith('agent.quiet.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    parts = {it.removeprefix("agent.quiet.") for it in done.stdout.split()}
    assert parts == {"assembly", "interfaces", "level", "quieting"}
