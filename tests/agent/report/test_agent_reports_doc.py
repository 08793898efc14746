"""The examples of docs/agent-reports.md are what the agent publishes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import yaml

from agent.config import NodeOptions
from agent.node_state import Path as Way
from agent.node_state import Proof
from agent.report import desired_node, events
from agent.report.cmk_node import cmk_node
from agent.report.extended_resources import RESOURCES
from agent.report.pod_status import pod_status
from pinning import contract
from pinning.cmk.pools import cmk_pools, cmk_yaml
from pinning.machine.cpuset import CPUSet
from tests.agent.states import ISOLATE, WHEN, bound, owner, state_of
from tests.pods import container

DOCUMENT = Path("docs/agent-reports.md").read_text(encoding="utf-8")
WEB = bound("web", container("main", 1), container("big", 64), annotations=ISOLATE)
PROOF = Proof(CPUSet([1]), WHEN, Way.CGROUP, window_seconds=0.0)
STATE = replace(state_of(WEB, proofs={owner(WEB): PROOF}), first_pids={"default/web/main": 48624})


def examples(language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def test_the_json_examples_are_written_so() -> None:
    """The JSON examples are the pod's annotation and both annotations of the node."""
    pod, topology, pools = map(json.loads, examples("json"))
    text = pod_status(STATE.pods[0], None)
    assert text
    assert json.loads(text) == pod
    machine = replace(STATE.topology, distances={0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}})
    assert json.loads(desired_node.topology_text(replace(STATE, topology=machine))) == topology
    assert json.loads(desired_node.pools_text(STATE, [WEB], NodeOptions())) == pools


def test_the_config_map_is_written_so() -> None:
    """The YAML example is the ConfigMap byte for byte, and a YAML parser reads the same pools."""
    [text] = examples("yaml")
    assert cmk_yaml(cmk_pools(cmk_node(STATE))) == text
    assert yaml.safe_load(text) == {
        pool: {
            socket: {cpus: list(map(str, tasks)) for cpus, tasks in lists.items()}
            for socket, lists in sockets.items()
        }
        for pool, sockets in cmk_pools(cmk_node(STATE)).items()
    }


def test_every_name_is_in_the_reference() -> None:
    """The page names every annotation, label, taint, condition, resource and event reason."""
    names = [
        contract.STATUS_CPUS,
        contract.STATUS_TOPOLOGY,
        contract.STATUS_POOLS,
        contract.CMK_NODE_LABEL,
        *contract.CPUMANAGER_LABELS,
        contract.NOT_READY_TAINT_KEY,
        contract.OVERCOMMIT_TAINT_KEY,
        contract.KUBELET_CONDITION,
        contract.OVERCOMMIT_CONDITION,
        contract.PLUGIN_CONDITION,
        contract.DEGRADED_CONDITION,
        contract.NOISE_CONDITION,
        contract.CMK_CONFIG_MAP_PREFIX,
        *RESOURCES,
        *events.Reason,
    ]
    assert [name for name in names if name not in DOCUMENT] == []
