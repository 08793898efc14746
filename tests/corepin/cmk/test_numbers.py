"""Core counts of the flags as configuration keys and node groups, computed without a cluster."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from agent.report.desired_node import topology_text
from corepin.cmk.difference import choice_lines, key_lines, node_lines
from corepin.cmk.fits import check_nodes, machine_of
from corepin.cmk.numbers import LARGEST, Numbers, Wanted, plan_numbers
from corepin.cmk.overlay import CMK, Choices
from corepin.errors import CommandFailed
from pinning.planning.cpu_groups import groups_among, key_of
from tests.agent.states import MACHINE, state_of

SHIPPED = "smtPolicy: prefer\npools: {exclusive_cores: 4, shared_cores: 1, exclusive_mode: packed, shared_mode: packed}\n"
MINE = "# by hand\n" + SHIPPED
SIX = Wanted(Numbers(exclusive_cores=6))


def pools(keys: Any, group: str = "") -> Any:
    """Return the numbers of exclusive and shared cores of a group."""
    found = yaml.safe_load(keys[key_of(group)])["pools"]
    return found["exclusive_cores"], found["shared_cores"]


def test_the_first_numbers_are_those_of_all_nodes() -> None:
    """The first core counts become the configuration of all nodes, without a group."""
    planned = plan_numbers(SIX, None, SHIPPED, {"a": ""})
    assert (list(planned.keys), pools(planned.keys), planned.groups) == (["config.yaml"], (6, 1), {"a": ""})


def test_without_numbers_what_is_installed_stays() -> None:
    """Flags without core counts leave the configuration unchanged, with comments and groups."""
    keys = {"config.yaml": MINE, "config.big.yaml": "reserved: ["}
    planned = plan_numbers(Wanted(), keys, SHIPPED, {"a": "", "b": "big"})
    assert (planned.keys, planned.groups) == (keys, {"a": "", "b": "big"})
    assert list(key_lines(keys, planned.keys)) == []


def test_other_numbers_for_some_nodes_are_a_group() -> None:
    """Core counts for some nodes create a group with the rest of their configuration; other nodes are unchanged."""
    planned = plan_numbers(SIX, {"config.yaml": MINE}, SHIPPED, {"a": ""})
    name = "exclusive-6-shared-1"
    assert planned.groups == {"a": name}
    assert planned.keys["config.yaml"] == MINE
    assert pools(planned.keys, name) == (6, 1)
    assert yaml.safe_load(planned.keys[key_of(name)])["smtPolicy"] == "prefer"


def test_the_same_command_again_changes_nothing() -> None:
    """A repeated command changes nothing; the default core counts move a node out of its group."""
    first = plan_numbers(SIX, {"config.yaml": MINE}, SHIPPED, {"a": ""})
    again = plan_numbers(SIX, first.keys, SHIPPED, {**first.groups, "b": ""})
    assert again.keys == first.keys
    assert again.groups == {"a": "exclusive-6-shared-1", "b": "exclusive-6-shared-1"}
    back = plan_numbers(Wanted(Numbers(exclusive_cores=4)), first.keys, SHIPPED, first.groups)
    assert (back.groups, back.keys) == ({"a": ""}, first.keys)


def test_one_number_keeps_the_others_of_each_node() -> None:
    """If one core count is given for nodes of two groups, each group keeps its other counts."""
    keys = {"config.yaml": SHIPPED, "config.s.yaml": SHIPPED.replace("shared_cores: 1", "shared_cores: 3")}
    planned = plan_numbers(SIX, keys, SHIPPED, {"a": "", "b": "s", "c": "gone"})
    assert planned.groups == {
        "a": "exclusive-6-shared-1",
        "b": "exclusive-6-shared-3",
        "c": "exclusive-6-shared-1",
    }


@pytest.mark.parametrize("taken", ["smtPolicy: require", "reserved: [", "a: 1\n---\nb: 2", "- a"])
def test_a_key_of_another_meaning_is_not_overwritten(taken: str) -> None:
    """A group that was edited by hand, or cannot be parsed, is not overwritten; the new group gets a suffix."""
    keys = {"config.yaml": SHIPPED, "config.exclusive-6-shared-1.yaml": taken}
    planned = plan_numbers(SIX, keys, SHIPPED, {"a": ""})
    (group,) = planned.groups.values()
    assert group.startswith("exclusive-6-shared-1-")
    assert planned.keys["config.exclusive-6-shared-1.yaml"] == taken
    assert plan_numbers(SIX, planned.keys, SHIPPED, {"b": ""}).groups == {"b": group}


def test_a_named_group_is_made_and_changed() -> None:
    """A named group is created and updated with its nodes; flags that are absent leave its other core counts."""
    made = plan_numbers(Wanted(SIX.numbers, "big"), {"config.yaml": SHIPPED}, SHIPPED, {"a": ""})
    assert (made.groups, pools(made.keys, "big")) == ({"a": "big"}, (6, 1))
    wanted = Wanted(Numbers(shared_cores=0, reserved="0,8", non_isolcpus="3"), "big", is_for_all=True)
    changed = plan_numbers(wanted, made.keys, SHIPPED, {"a": "big"})
    assert pools(changed.keys, "big") == (6, 0)
    assert yaml.safe_load(changed.keys["config.big.yaml"])["reserved"] == "0,8"
    assert changed.keys["config.yaml"] == SHIPPED
    without = plan_numbers(Wanted(Numbers(non_isolcpus=""), "big"), changed.keys, SHIPPED, {"a": "big"})
    assert "exclusive_non_isolcpus" not in without.keys["config.big.yaml"]


def test_numbers_for_all_hosts_leave_groups_theirs() -> None:
    """Core counts for all hosts do not change groups."""
    keys = {"config.yaml": "pools: dynamic", "config.big.yaml": SHIPPED}
    planned = plan_numbers(Wanted(SIX.numbers, is_for_all=True), keys, SHIPPED, {"a": "", "b": "big"})
    assert (pools(planned.keys), planned.groups) == ((6, 1), {"a": "", "b": "big"})
    assert planned.keys["config.big.yaml"] == SHIPPED


def test_what_cannot_be_read_or_meant_is_refused() -> None:
    """Unreadable configuration is refused with its key or flag; an unreadable key of another group stays."""
    broken = {"config.yaml": SHIPPED, "config.big.yaml": "reserved: ["}
    with pytest.raises(CommandFailed, match=r"ConfigMap corepin-agent: config\.big\.yaml: line 1"):
        plan_numbers(Wanted(SIX.numbers, "big"), broken, SHIPPED, {"a": ""})
    assert plan_numbers(SIX, broken, SHIPPED, {"a": ""}).keys["config.big.yaml"] == "reserved: ["
    with pytest.raises(CommandFailed, match="--num-exclusive-cores: 0 leaves no core"):
        plan_numbers(Wanted(Numbers(exclusive_cores=0)), None, SHIPPED, {})


def test_a_thousand_groups_fit_and_a_mebibyte_does_not() -> None:
    """A ConfigMap above the API server's limit of 1 MiB is refused with a remedy; 1000 groups fit."""
    wanted = Wanted(Numbers(exclusive_cores=99, reserved="0-1"), "g0")
    one = plan_numbers(wanted, {"config.yaml": SHIPPED}, SHIPPED, {"a": ""}).keys["config.g0.yaml"]
    keys = {"config.yaml": SHIPPED, **{f"config.g{number}.yaml": one for number in range(1000)}}
    assert len(groups_among(keys)) == 1000
    assert sum(map(len, keys.values())) < LARGEST / 4
    full = {**keys, "config.full.yaml": "#" * LARGEST}
    with pytest.raises(
        CommandFailed, match="with 1002 groups are more than 1048576: remove the keys of groups"
    ):
        plan_numbers(Wanted(Numbers(exclusive_cores=2000)), full, SHIPPED, {"a": ""})


def node(**annotations: str) -> Any:
    """Return a node with annotations of its agent."""
    return {
        "metadata": {"annotations": {f"status.corepin.io/{key}": text for key, text in annotations.items()}}
    }


def test_numbers_are_checked_against_a_known_node() -> None:
    """Core counts are checked against the topology that the agent published; nodes without a valid one are unknown."""
    topology = topology_text(state_of())
    cores = len(MACHINE.cores)
    keys = {
        "config.yaml": SHIPPED,
        "config.fit.yaml": f"pools: {{exclusive_cores: {cores - 1}}}",
        "config.bad.yaml": "observe: perhaps",
    }
    nodes = {"known": node(topology=topology), "new": node(), "damaged": node(topology='{"cores": 3}')}
    fits = check_nodes(keys, dict.fromkeys(nodes, ""), nodes)
    assert fits.unknown == ("damaged", "new")
    (problem,) = fits.refused
    assert problem.startswith("node known cannot have config.yaml: ")
    assert check_nodes(keys, {"known": "fit"}, nodes) == ((), ())
    (problem,) = check_nodes(keys, {"known": "bad"}, nodes).refused
    assert "observe: 'perhaps' is not allowed" in problem
    (problem,) = check_nodes(keys, {"known": "gone"}, nodes).refused
    assert "has no such key: give numbers" in problem


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param({"topology": "["}, id="no JSON"),
        pytest.param({"topology": "[" * 100_000}, id="deep"),
        pytest.param({"pools": "[]"}, id="pools of another kind"),
        pytest.param({"pools": '{"universe": "5-3"}'}, id="no CPU list"),
        pytest.param({"pools": '{"universe": "0", "reservedBy": "kubelet"}'}, id="no reserve"),
    ],
)
def test_what_an_agent_cannot_have_written_is_not_known(texts: dict[str, str]) -> None:
    """A node with an invalid topology or pools annotation counts as unknown."""
    assert machine_of(node(**{"topology": topology_text(state_of()), **texts})) is None


def test_the_kubelets_reserve_counts_where_it_fits() -> None:
    """Like the agent, the check uses the kubelet's reserved CPUs if the machine has others too, else the default."""
    text = topology_text(state_of())
    pools = '{"universe":"%s","reserved":"%s","shared":"","setAside":"","reservedBy":"kubelet"}'
    for reserved in (MACHINE.cores[0].cpus, MACHINE.cpus):
        shown = node(topology=text, pools=pools % (MACHINE.cpus, reserved))
        machine = machine_of(shown)
        assert machine is not None
        assert machine.kubelets == reserved
        keys = {"config.yaml": "pools: {exclusive_cores: 1}"}
        assert check_nodes(keys, {"a": ""}, {"a": shown}) == ((), ())


def test_the_difference_is_read_line_by_line() -> None:
    """The diff has keys, numbers of all nodes and labels, without control characters."""
    before, after = (
        {"config.yaml": "a: 1\nb: 2\n"},
        {"config.yaml": "a: 1\nb: \x1b[2J\n", "config.b.yaml": "c: 3\n"},
    )
    assert list(key_lines(before, after)) == [
        *("ConfigMap corepin-agent: config.b.yaml is new", "  +c: 3"),
        *("ConfigMap corepin-agent: config.yaml is changed", "   a: 1", "  -b: 2", "  +b: \\x1b[2J"),
    ]
    assert list(choice_lines(Choices(image="a", has_taint=False), CMK)) == [
        "all nodes: image: a -> none",
        "all nodes: taint cmk=true:NoSchedule: not set -> set",
    ]
    agent, group = "corepin.io/agent", "corepin.io/cpu-group"
    nodes = {"a": {agent: "true", group: "big"}, "b": {}}
    wanted: dict[str, dict[str, str | None]] = {"a": {agent: "true", group: None}, "b": {agent: "true"}}
    assert list(node_lines(nodes, wanted)) == [
        f"node a: without {group} (was big)",
        f"node b: {agent}=true",
    ]
