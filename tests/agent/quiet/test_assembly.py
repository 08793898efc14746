"""`Quieting` as it is built from the agent's flags and configuration."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.node_state import QUIET_PENDING, NodeState
from agent.quiet.assembly import FILES, quieting_of
from agent.quiet.quieting import SWITCHED_OFF, Quieting
from pinning.planning.node_config import NodeConfig
from tests.agent.fakes import FakeNode
from tests.agent.quiet.fakes import process
from tests.agent.states import ISOLATE, bound, state_of
from tests.pods import container

NOISE = {**ISOLATE, "noise-policy.corepin.io/pod": "quiet"}
STATE = state_of(bound("web", container("main", 1), annotations=NOISE))


def quiet_of(state: NodeState) -> str | None:
    """Return the container's result in a state."""
    return state.pods[0].containers[0].quiet


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param(NodeConfig(), SWITCHED_OFF, id="by default"),
        pytest.param(NodeConfig(quiet_interrupts=True), QUIET_PENDING, id="allowed"),
    ],
)
def test_interrupts_are_moved_only_with_the_option(tmp_path: Path, config: NodeConfig, reason: str) -> None:
    """On nodes with the component for counting, an upgrade must not write to /proc/irq."""
    agent = AgentConfig("n", tmp_path, irq=tmp_path / "irq", config=config)
    node = FakeNode(tmp_path / "state")
    quieting = quieting_of(agent, node.state_dir, node.machine)
    said = quieting.add(STATE)
    assert (quiet_of(said), said.quiet is None) == (reason, reason == SWITCHED_OFF)
    assert not [*(tmp_path / "state").glob("i*.json")]
    node.close()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("version", "is_done"), [(1, False), (2, False), (None, True)])
def test_reset_without_the_component_fails_while_changes_are_left(
    tmp_path: Path, name: str, version: int | None, is_done: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier agent had the component; a file of another boot has nothing that is in force."""
    node = FakeNode(tmp_path / "state")
    boot = node.machine.boot_id() if version else "another"
    saved = {"version": version or 1, "bootID": boot, "originals": {"ban": "x"}}
    node.state_dir.beside(name).write_text(json.dumps(saved))
    quieting = quieting_of(AgentConfig("n", tmp_path, irq=None), node.state_dir, node.machine)
    assert quieting.restore() is is_done
    assert ("quiet CPUs not restored" in [it.message for it in caplog.records]) is not is_done
    node.close()


def test_workqueues_alone_are_moved_where_interrupts_are_not_asked_for(tmp_path: Path) -> None:
    """The status names what is switched off; without the mount it names that, too."""
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
    work = asyncio.create_task(quieting.run(shown.set))
    await asyncio.wait_for(shown.wait(), 60)
    work.cancel()
    await asyncio.wait([work])


@pytest.mark.parametrize("is_managed", [True, False])
def test_irqbalance_of_the_operator_is_not_asked(tmp_path: Path, is_managed: bool) -> None:
    """With `quiet.irqbalance: ignore` interrupts are moved.

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
