"""The configuration of a node: its fields, and the error for each mistake."""

from __future__ import annotations

import pytest

from pinning.contract import CoreType, DevicePolicy, NoiseKind, NUMAPolicy, SMTPolicy, VMThreadsPolicy
from pinning.errors import BadContract
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.node_config import (
    DEFAULT,
    ExecAffinity,
    NodeConfig,
    Quota,
    StaticPools,
    UncountedClaims,
    exec_cpus,
    read_node_config,
)


def test_nothing_stated_is_the_default() -> None:
    """An empty configuration, and one whose values are null, equal the default."""
    assert read_node_config({}) == DEFAULT == NodeConfig()
    assert read_node_config({"alignUncore": "auto"}) == DEFAULT
    assert read_node_config(dict.fromkeys(["reserved", "sort", "smtPolicy", "observe", "pools"])) == DEFAULT


EVERY_KEY = {
    "reserved": "0,8",
    "strictReserved": True,
    "sort": "spread",
    "distribute": True,
    "alignUncore": True,
    "smtPolicy": "require",
    "numaPolicy": "single",
    "coreType": "efficient",
    "devicePolicy": "none",
    "nearIgnore": ["*/kvm", "smarter-devices/*"],
    "quota": "unset",
    "vmThreads": "shared",
    "execAffinity": "last",
    "strictThreads": True,
    "countedClaims": ["isolate", "require"],
    "uncountedClaims": "refuse",
    "systemNamespaces": ["kube-system", "monitoring-*"],
    "observe": True,
    "pools": {
        "exclusive_cores": 4,
        "shared_cores": 1,
        "exclusive_non_isolcpus": "5-6",
        "exclusive_mode": "spread",
        "shared_mode": "packed",
    },
    "noise": {"softirqs": 5000, "interrupts": 0.5},
    "quiet": {"interrupts": True, "workqueues": True, "irqbalance": "ignore", "powerLatency": 20},
}


def test_every_key_is_read() -> None:
    """Each key of the configuration sets its field."""
    assert read_node_config(EVERY_KEY) == NodeConfig(
        reserved=CPUSet.parse("0,8"),
        strict_reserved=True,
        system_namespaces=("kube-system", "monitoring-*"),
        sort="spread",
        distribute=True,
        align_uncore=True,
        smt_policy=SMTPolicy.REQUIRE,
        numa_policy=NUMAPolicy.SINGLE,
        core_type=CoreType.EFFICIENT,
        device_policy=DevicePolicy.NONE,
        near_ignore=("*/kvm", "smarter-devices/*"),
        quota=Quota.UNSET,
        vm_threads=VMThreadsPolicy.SHARED,
        exec_affinity=ExecAffinity.LAST,
        strict_threads=True,
        counted_claims=frozenset({SMTPolicy.ISOLATE, SMTPolicy.REQUIRE}),
        uncounted_claims=UncountedClaims.REFUSE,
        observe=True,
        pools=StaticPools(4, 1, CPUSet.parse("5-6"), "spread", "packed"),
        noise_limits=((NoiseKind.INTERRUPTS, 0.5), (NoiseKind.SOFTIRQS, 5000.0)),
        quiet_interrupts=True,
        quiet_workqueues=True,
        quiet_latency=20,
        manages_irqbalance=False,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"pools": "dynamic"}, None, id="the word dynamic"),
        pytest.param({"pools": {"exclusive_cores": 2}}, StaticPools(2, 0, EMPTY), id="exclusive cores alone"),
        pytest.param(
            {"pools": {"exclusive_non_isolcpus": 3}},
            StaticPools(0, 0, CPUSet([3])),
            id="a list that is one number",
        ),
    ],
)
def test_pools(given: dict[str, object], expected: StaticPools | None) -> None:
    """The pools are dynamic unless the configuration has numbers of cores."""
    assert read_node_config(given).pools == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            [],
            r"the node configuration: \[\] is not a mapping: write keys of reserved, strictReserved, systemNamespaces",
            id="a list",
        ),
        pytest.param(None, "the node configuration: None is not a mapping", id="nothing"),
        pytest.param(
            {"reservd": "0"}, r"reservd: the key is unknown \(value '0'\): did you mean reserved\?", id="typo"
        ),
        pytest.param(
            {"zzz": 1},
            "zzz: the key is unknown .* known keys are reserved, strictReserved, systemNamespaces",
            id="unknown key",
        ),
        pytest.param({1: 1}, "1: the key is unknown", id="a key that is a number"),
        pytest.param({"reserved": "3-1"}, "reserved: .*runs backwards: write 1-3", id="bad list"),
        pytest.param({"reserved": ""}, "reserved: '' is not allowed: write a CPU list", id="empty list"),
        pytest.param({"reserved": True}, "reserved: True is not allowed", id="a truth value for a list"),
        pytest.param({"reserved": [0, 1]}, "reserved: .0, 1. is not allowed", id="a YAML list for a list"),
        pytest.param({"reserved": -1}, "reserved: '-1' in CPU list", id="a negative number"),
        pytest.param({"sort": "packd"}, "sort: 'packd' is not allowed: write packed or spread", id="sort"),
        pytest.param({"sort": ["packed"]}, "sort: .*not allowed", id="sort as a list"),
        pytest.param(
            {"distribute": "yes"}, "distribute: 'yes' is not allowed: write true or false", id="flag"
        ),
        pytest.param({"strictReserved": 1}, "strictReserved: 1 .*write true or false", id="strict"),
        pytest.param(
            {"systemNamespaces": "kube-system"}, "systemNamespaces: .*a list of namespaces", id="text"
        ),
        pytest.param({"systemNamespaces": ["Kube"]}, "systemNamespaces: .*a list of", id="no namespace"),
        pytest.param({"systemNamespaces": [1]}, "systemNamespaces: .*a list of", id="number in a list"),
        pytest.param({"alignUncore": "on"}, "alignUncore: 'on' .*write auto, true or false", id="caches"),
        pytest.param({"smtPolicy": "Prefer"}, "smtPolicy: .*write prefer or require or isolate", id="smt"),
        pytest.param(
            {"devicePolicy": "strict"}, "devicePolicy: .*write none or prefer or require", id="devices"
        ),
        pytest.param({"nearIgnore": "*/kvm"}, "nearIgnore: .*write a list of patterns", id="one pattern"),
        pytest.param({"nearIgnore": [""]}, "nearIgnore: .*not allowed", id="an empty pattern"),
        pytest.param({"nearIgnore": [3]}, "nearIgnore: .*not allowed", id="a number for a pattern"),
        pytest.param({"numaPolicy": {}}, "numaPolicy: {} is not allowed: write packed or", id="numa"),
        pytest.param({"execAffinity": "first"}, "write none or last or shared", id="execs"),
        pytest.param({"execAffinity": False}, "write none or last or shared", id="execs-off"),
        pytest.param({"execAffinity": ""}, "write none or last or shared", id="execs-empty"),
        pytest.param({"quota": 0}, "quota: 0 is not allowed: write auto or keep or unset", id="quota"),
        pytest.param(
            {"countedClaims": "isolate"}, "countedClaims: .*write a list of isolate and require", id="no list"
        ),
        pytest.param({"countedClaims": False}, "countedClaims: False is not allowed", id="a truth value"),
        pytest.param({"countedClaims": ["prefer"]}, "countedClaims: .*not allowed", id="never counted"),
        pytest.param({"countedClaims": [{}]}, "countedClaims: .*not allowed", id="a mapping in a list"),
        pytest.param({"uncountedClaims": "deny"}, "uncountedClaims: .*report or refuse", id="uncounted"),
        pytest.param(
            {"pools": 3}, "pools: 3 is not a mapping: .*or the word dynamic", id="pools as a number"
        ),
        pytest.param(
            {"pools": {"exclusive": 3}}, r"pools.exclusive: .*did you mean exclusive_", id="pool key"
        ),
        pytest.param(
            {"pools": {"exclusive_cores": -1}}, "pools.exclusive_cores: -1 .*0 or more", id="negative count"
        ),
        pytest.param(
            {"pools": {"exclusive_cores": True}}, "pools.exclusive_cores: True", id="a truth value as count"
        ),
        pytest.param(
            {"noise": 3}, "noise: 3 is not a mapping: write keys of interrupts, .*softirqs$", id="noise"
        ),
        pytest.param({"quiet": {"interrupts": "yes"}}, "quiet.interrupts: 'yes'", id="quiet interrupts"),
        pytest.param({"quiet": {"irqbalance": "stop"}}, "quiet.irqbalance: 'stop'", id="irqbalance"),
        pytest.param({"quiet": {"workqueues": 1}}, "quiet.workqueues: 1 ", id="quiet workqueues"),
        pytest.param({"quiet": {"powerLatency": 0}}, "powerLatency: 0 .*off, or micro", id="no latency"),
        pytest.param({"quiet": {"powerLatency": True}}, "powerLatency: True .*off, or", id="true latency"),
        pytest.param({"quiet": {"powerLatency": "20"}}, "powerLatency: .20. ", id="text latency"),
        pytest.param({"quiet": {"powerLatency": 1000001}}, "powerLatency: 1000001 ", id="long latency"),
        pytest.param({"quiet": {"rdt": True}}, "quiet.rdt: the key is unknown", id="quiet key"),
        pytest.param({"noise": {"irqs": 3}}, "noise.irqs: the key is unknown", id="noise key"),
        pytest.param(
            {"noise": {"interrupts": -1}},
            "noise.interrupts: -1 .*per second from 0 to 1000000000",
            id="negative rate",
        ),
        pytest.param({"noise": {"softirqs": float("nan")}}, "noise.softirqs: nan is not", id="no number"),
        pytest.param({"noise": {"softirqs": 10**400}}, "noise.softirqs: 10+ is not", id="an endless rate"),
        pytest.param({"noise": {"softirqs": "9"}}, "noise.softirqs: '9' is not", id="a text as rate"),
        pytest.param(
            {"noise": {"softirqs": True}}, "noise.softirqs: True is not", id="a truth value as rate"
        ),
        pytest.param({"pools": {"exclusive_cores": "4"}}, "pools.exclusive_cores: '4'", id="a text as count"),
        pytest.param(
            {"pools": {"shared_cores": 2}}, "pools: .*no core that could be exclusive", id="no exclusive core"
        ),
    ],
)
def test_mistakes_are_refused(given: object, message: str) -> None:
    """The error for each mistake has the key, the value and the remedy."""
    with pytest.raises(BadContract, match=message):
        read_node_config(given)


@pytest.mark.parametrize(
    ("affinity", "others", "cpus"),
    [
        (ExecAffinity.NONE, "0-1", ""),
        (ExecAffinity.LAST, "0-1", "6"),
        (ExecAffinity.SHARED, "0-1", "0-1"),
        (ExecAffinity.SHARED, "1,5", "1"),
        (ExecAffinity.SHARED, "", "6"),
        (ExecAffinity.SHARED, "5-6", "6"),
    ],
)
def test_execs_go_where_the_operator_wants_them(affinity: ExecAffinity, others: str, cpus: str) -> None:
    """By `execAffinity` processes of an exec run on the container's highest own CPU, or on a pool that it may use."""
    assert exec_cpus(affinity, CPUSet.parse("4-6"), CPUSet.parse(others)) == CPUSet.parse(cpus)
    assert exec_cpus(affinity, EMPTY, EMPTY) == EMPTY


def test_any_part_keeps_cpus_quiet() -> None:
    """CPUs are kept quiet if a part of `quiet` is on; if none is, the agent only counts."""
    parts = [{}, {"interrupts": True}, {"workqueues": True}, {"powerLatency": 1}]
    kept = [read_node_config({"quiet": it}).keeps_quiet for it in parts]
    assert kept == [False, True, True, True]
    for off in ("off", False, None):  # YAML parses off as false
        assert not read_node_config({"quiet": {"powerLatency": off}}).keeps_quiet
