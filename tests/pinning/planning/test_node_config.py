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
from tests.tables import table


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


@table(
    "given, expected",
    {
        "the word dynamic": ({"pools": "dynamic"}, None),
        "exclusive cores alone": ({"pools": {"exclusive_cores": 2}}, StaticPools(2, 0, EMPTY)),
        "a list that is one number": (
            {"pools": {"exclusive_non_isolcpus": 3}},
            StaticPools(0, 0, CPUSet([3])),
        ),
    },
)
def test_pools(given: dict[str, object], expected: StaticPools | None) -> None:
    """The pools are dynamic unless the configuration has numbers of cores."""
    assert read_node_config(given).pools == expected


@table(
    "given, message",
    {
        "a list": (
            [],
            r"the node configuration: \[\] is not a mapping: write keys of reserved, strictReserved, systemNamespaces",
        ),
        "nothing": (None, "the node configuration: None is not a mapping"),
        "typo": ({"reservd": "0"}, r"reservd: the key is unknown \(value '0'\): did you mean reserved\?"),
        "unknown key": (
            {"zzz": 1},
            "zzz: the key is unknown .* known keys are reserved, strictReserved, systemNamespaces",
        ),
        "a key that is a number": ({1: 1}, "1: the key is unknown"),
        "bad list": ({"reserved": "3-1"}, "reserved: .*runs backwards: write 1-3"),
        "empty list": ({"reserved": ""}, "reserved: '' is not allowed: write a CPU list"),
        "a truth value for a list": ({"reserved": True}, "reserved: True is not allowed"),
        "a YAML list for a list": ({"reserved": [0, 1]}, "reserved: .0, 1. is not allowed"),
        "a negative number": ({"reserved": -1}, "reserved: '-1' in CPU list"),
        "sort": ({"sort": "packd"}, "sort: 'packd' is not allowed: write packed or spread"),
        "sort as a list": ({"sort": ["packed"]}, "sort: .*not allowed"),
        "flag": ({"distribute": "yes"}, "distribute: 'yes' is not allowed: write true or false"),
        "strict": ({"strictReserved": 1}, "strictReserved: 1 .*write true or false"),
        "text": ({"systemNamespaces": "kube-system"}, "systemNamespaces: .*a list of namespaces"),
        "no namespace": ({"systemNamespaces": ["Kube"]}, "systemNamespaces: .*a list of"),
        "number in a list": ({"systemNamespaces": [1]}, "systemNamespaces: .*a list of"),
        "caches": ({"alignUncore": "on"}, "alignUncore: 'on' .*write auto, true or false"),
        "smt": ({"smtPolicy": "Prefer"}, "smtPolicy: .*write prefer or require or isolate"),
        "devices": ({"devicePolicy": "strict"}, "devicePolicy: .*write none or prefer or require"),
        "one pattern": ({"nearIgnore": "*/kvm"}, "nearIgnore: .*write a list of patterns"),
        "an empty pattern": ({"nearIgnore": [""]}, "nearIgnore: .*not allowed"),
        "a number for a pattern": ({"nearIgnore": [3]}, "nearIgnore: .*not allowed"),
        "numa": ({"numaPolicy": {}}, "numaPolicy: {} is not allowed: write packed or"),
        "execs": ({"execAffinity": "first"}, "write none or last or shared"),
        "execs-off": ({"execAffinity": False}, "write none or last or shared"),
        "execs-empty": ({"execAffinity": ""}, "write none or last or shared"),
        "quota": ({"quota": 0}, "quota: 0 is not allowed: write auto or keep or unset"),
        "no list": ({"countedClaims": "isolate"}, "countedClaims: .*write a list of isolate and require"),
        "a truth value": ({"countedClaims": False}, "countedClaims: False is not allowed"),
        "never counted": ({"countedClaims": ["prefer"]}, "countedClaims: .*not allowed"),
        "a mapping in a list": ({"countedClaims": [{}]}, "countedClaims: .*not allowed"),
        "uncounted": ({"uncountedClaims": "deny"}, "uncountedClaims: .*report or refuse"),
        "pools as a number": ({"pools": 3}, "pools: 3 is not a mapping: .*or the word dynamic"),
        "pool key": ({"pools": {"exclusive": 3}}, r"pools.exclusive: .*did you mean exclusive_"),
        "negative count": ({"pools": {"exclusive_cores": -1}}, "pools.exclusive_cores: -1 .*0 or more"),
        "a truth value as count": ({"pools": {"exclusive_cores": True}}, "pools.exclusive_cores: True"),
        "noise": ({"noise": 3}, "noise: 3 is not a mapping: write keys of interrupts, .*softirqs$"),
        "quiet interrupts": ({"quiet": {"interrupts": "yes"}}, "quiet.interrupts: 'yes'"),
        "irqbalance": ({"quiet": {"irqbalance": "stop"}}, "quiet.irqbalance: 'stop'"),
        "quiet workqueues": ({"quiet": {"workqueues": 1}}, "quiet.workqueues: 1 "),
        "no latency": ({"quiet": {"powerLatency": 0}}, "powerLatency: 0 .*off, or micro"),
        "true latency": ({"quiet": {"powerLatency": True}}, "powerLatency: True .*off, or"),
        "text latency": ({"quiet": {"powerLatency": "20"}}, "powerLatency: .20. "),
        "long latency": ({"quiet": {"powerLatency": 1000001}}, "powerLatency: 1000001 "),
        "quiet key": ({"quiet": {"rdt": True}}, "quiet.rdt: the key is unknown"),
        "noise key": ({"noise": {"irqs": 3}}, "noise.irqs: the key is unknown"),
        "negative rate": (
            {"noise": {"interrupts": -1}},
            "noise.interrupts: -1 .*per second from 0 to 1000000000",
        ),
        "no number": ({"noise": {"softirqs": float("nan")}}, "noise.softirqs: nan is not"),
        "an endless rate": ({"noise": {"softirqs": 10**400}}, "noise.softirqs: 10+ is not"),
        "a text as rate": ({"noise": {"softirqs": "9"}}, "noise.softirqs: '9' is not"),
        "a truth value as rate": ({"noise": {"softirqs": True}}, "noise.softirqs: True is not"),
        "a text as count": ({"pools": {"exclusive_cores": "4"}}, "pools.exclusive_cores: '4'"),
        "no exclusive core": ({"pools": {"shared_cores": 2}}, "pools: .*no core that could be exclusive"),
    },
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
