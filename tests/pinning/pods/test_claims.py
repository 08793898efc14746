"""A pod read into claims: claims, refusals and warnings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.contract import CPUPolicy, DevicePolicy, NUMAPolicy, QoSClass, QuotaPolicy, SMTPolicy
from pinning.pods.claims import Claim, Origin, read_pod
from pinning.pods.crowd import MOST_CONTAINERS
from pinning.pods.qos import qos_class
from pinning.pods.resources import Role
from tests.pods import (
    CORES,
    CPU_MANAGER,
    DEDICATED,
    LAUNCHER,
    MEMORY,
    NUMA,
    OTHER_CORES,
    SMT,
    container,
    fields,
    launcher,
    pod,
)
from tests.tables import table

CRANE = "qos.gocrane.io/cpu-manager"
QUOTA = "quota-policy.corepin.io/pod"
DEVICES = "device-policy.corepin.io/pod"
DEVICES_OF = "device-policy.corepin.io/container."
MAIN = "cpu-manager.corepin.io/container.main"


def exclusive(count: int, **more: Any) -> Claim:
    """Return the claim that an exclusive container named main has."""
    return Claim("main", Role.MAIN, Origin.ANNOTATION, CPUPolicy.EXCLUSIVE, count, **more)


@table(
    "limits, requests, count",
    {
        "request absent counts as equal": ("2", None, 2),
        "equal": ("2", "2", 2),
        "equal in other spellings": ("2000m", 2, 2),
        "request below limit": ("2", "1", None),
        "fraction": ("1500m", "1500m", None),
        "zero": ("0", "0", None),
        "request only": (None, "2", None),
        "nothing": (None, None, None),
        "memory does not matter": ({"cpu": "2"}, {"memory": "1Gi"}, 2),
    },
)
def test_eligible_is_a_whole_limit_equal_to_the_request(
    limits: Any, requests: Any, count: int | None
) -> None:
    """Crane's rule decides, whatever the pod's QoS class is; no eligible container is a refusal."""
    pod_claims = read_pod(pod(container("main", limits, requests), annotations={CPU_MANAGER: "exclusive"}))
    assert pod_claims.claims == ((exclusive(count),) if count else ())
    assert fields(pod_claims.causes) == ([] if count else [f"metadata.annotations[{CPU_MANAGER}]"])


@table(
    "annotations, policy",
    {
        "crane": ({CRANE: "exclusive"}, CPUPolicy.EXCLUSIVE),
        "crane share": ({CRANE: "share"}, CPUPolicy.SHARE),
        "crane none": ({CRANE: "none"}, None),
        "pod": ({CPU_MANAGER: "share"}, CPUPolicy.SHARE),
        "narrower wins": ({CPU_MANAGER: "share", MAIN: "exclusive"}, CPUPolicy.EXCLUSIVE),
        "narrower none wins": ({CPU_MANAGER: "exclusive", MAIN: "none"}, None),
        "narrower wins over crane": ({CRANE: "share", MAIN: "exclusive"}, CPUPolicy.EXCLUSIVE),
        "both agree": ({CRANE: "share", CPU_MANAGER: "share"}, CPUPolicy.SHARE),
        "require alone means exclusive": ({SMT: "require"}, CPUPolicy.EXCLUSIVE),
        "isolate alone means exclusive": ({SMT: "isolate"}, CPUPolicy.EXCLUSIVE),
        "prefer alone means nothing": ({SMT: "prefer"}, None),
        "none beats isolate": ({SMT: "isolate", CPU_MANAGER: "none"}, None),
        "nothing asked": ({}, None),
    },
)
def test_the_narrower_scope_wins(annotations: dict[str, str], policy: CPUPolicy | None) -> None:
    """The policy of an eligible container is that of the narrowest annotation that names it."""
    pod_claims = read_pod(pod(container("main", "2"), annotations=annotations))
    assert [claim.policy for claim in pod_claims.claims] == ([policy] if policy else [])
    assert pod_claims.causes == ()


def test_two_pod_wide_policies_that_differ_are_warned_about() -> None:
    """The annotation of corepin takes precedence over Crane, with a warning if they differ."""
    pod_claims = read_pod(pod(container("main", "2"), annotations={CRANE: "share", CPU_MANAGER: "exclusive"}))
    assert pod_claims.claims == (exclusive(2),)
    assert fields(pod_claims.warnings) == [f"metadata.annotations[{CRANE}]"]


@pytest.mark.parametrize(
    ("annotations", "field", "expected"),
    [
        ({CRANE: "exclusively"}, CRANE, "none, exclusive, share"),
        ({CRANE: ""}, CRANE, "none, exclusive, share"),
        ({CPU_MANAGER: "Exclusive"}, CPU_MANAGER, "none, exclusive, share"),
        ({SMT: "isolated"}, SMT, "prefer, require, isolate"),
        ({NUMA: "strict", CPU_MANAGER: "share"}, NUMA, "packed, distributed, single"),
        ({MAIN: "both"}, MAIN, "none, exclusive, share"),
        ({"cpu-manager.corepin.io/main": "share"}, "cpu-manager.corepin.io/main", "container.NAME"),
        ({"cpu-manager.corepin.io/container.gone": "share"}, "cpu-manager.corepin.io/container.gone", "main"),
        ({"sidecar-limits.corepin.io/pod": "yes"}, "sidecar-limits.corepin.io/pod", "true"),
        (
            {"sidecar-limits.corepin.io/main": "true"},
            "sidecar-limits.corepin.io/main",
            "sidecar-limits.corepin.io/pod",
        ),
    ],
)
def test_a_word_that_is_none_is_refused_with_the_words_that_are(
    annotations: dict[str, str], field: str, expected: str
) -> None:
    """An unknown value, scope or container is refused with its annotation and the possible values."""
    (cause,) = read_pod(pod(container("main", "2"), annotations=annotations)).causes
    assert cause.field == f"metadata.annotations[{field}]"
    assert expected in cause.message


def test_a_container_of_no_pod_yet_has_no_known_names() -> None:
    """Naming a container in a pod without containers says that there are none."""
    document = pod(annotations={MAIN: "share"})
    document["spec"] = {"containers": None}
    (cause,) = read_pod(document).causes
    assert cause.message.endswith("its containers are: none")


def test_a_named_container_that_is_not_eligible_is_refused() -> None:
    """The cause names the container, its limit and request, and what would be eligible."""
    document = pod(container("main", "1500m"), container("other", "2"), annotations={MAIN: "exclusive"})
    (cause,) = read_pod(document).causes
    assert cause.field == f"metadata.annotations[{MAIN}]"
    assert "container main (limit 1500m, request 1500m)" in cause.message
    assert cause.message.endswith("e.g. 2 for both")


def test_a_named_container_without_limits_is_refused_with_an_example() -> None:
    """With nothing stated the example is a limit."""
    document = pod(container("main"), annotations={"smt-policy.corepin.io/container.main": "require"})
    (cause,) = read_pod(document).causes
    assert cause.message.endswith("e.g. limits.cpu: 2")


@pytest.mark.parametrize("key", [CPU_MANAGER, SMT])
def test_a_pod_without_any_eligible_container_is_refused(key: str) -> None:
    """A pod-wide policy without an eligible container is refused at admission with each container's amounts."""
    value = "exclusive" if key == CPU_MANAGER else "isolate"
    document = pod(container("main", "2", "1"), container("log"), annotations={key: value})
    pod_claims = read_pod(document)
    (cause,) = pod_claims.causes
    assert cause.field == f"metadata.annotations[{key}]"
    assert "main has limit 2, request 1" in cause.message
    assert cause.field not in fields(pod_claims.warnings)  # the refusal already reports this


def test_none_is_always_accepted() -> None:
    """`none` needs no eligible container."""
    pod_claims = read_pod(pod(container("main", "1500m"), annotations={CPU_MANAGER: "none", MAIN: "none"}))
    assert (pod_claims.claims, pod_claims.causes, pod_claims.warnings) == ((), (), ())


def test_ineligible_containers_are_warned_about() -> None:
    """One eligible container is enough; the others run in the shared set and a warning names them."""
    document = pod(
        container("main", "2"),
        container("proxy", "500m"),
        container("quiet"),
        annotations={CPU_MANAGER: "exclusive", "cpu-manager.corepin.io/container.quiet": "none"},
    )
    pod_claims = read_pod(document)
    assert [claim.container for claim in pod_claims.claims] == ["main"]
    (warning,) = pod_claims.warnings
    assert "container proxy (limit 500m, request 500m) runs in the shared set" in warning.message


@table(
    "annotations, warned",
    {
        "from the CPU policy": ({CPU_MANAGER: "exclusive", MAIN: "none"}, CPU_MANAGER),
        "from the CPU policy that an SMT policy means": ({SMT: "require", MAIN: "none"}, SMT),
        "from the SMT policy": ({SMT: "require", "smt-policy.corepin.io/container.main": "prefer"}, SMT),
    },
)
def test_a_policy_with_exceptions_is_not_refused_for_what_an_excepted_container_has(
    annotations: dict[str, str], warned: str
) -> None:
    """A container that is excepted from the pod's policy does not make it fail, before or after a resize."""
    for cpu in ("2", "1500m"):
        pod_claims = read_pod(
            pod(container("main", cpu), container("proxy", "500m"), annotations=annotations)
        )
        assert (pod_claims.claims, list(pod_claims.causes)) == ((), [])
        assert f"metadata.annotations[{warned}]" in fields(pod_claims.warnings)


@table(
    "annotations, idle",
    {
        "smt beside share": ({CPU_MANAGER: "share", SMT: "require"}, [SMT]),
        "smt beside none": ({CPU_MANAGER: "none", SMT: "isolate"}, [SMT]),
        "prefer without exclusive": ({SMT: "prefer"}, [SMT]),
        "numa without a claim": ({NUMA: "single"}, [NUMA]),
        "numa with a share claim": ({CPU_MANAGER: "share", NUMA: "single"}, []),
        "all act": ({CPU_MANAGER: "exclusive", SMT: "require", NUMA: "single"}, []),
        "container scope": (
            {MAIN: "share", "smt-policy.corepin.io/container.main": "require"},
            ["smt-policy.corepin.io/container.main"],
        ),
        "overruled everywhere": (
            {CPU_MANAGER: "exclusive", SMT: "require", "smt-policy.corepin.io/container.main": "prefer"},
            [SMT],
        ),
        "quota of an exclusive container": ({CPU_MANAGER: "exclusive", QUOTA: "unset"}, []),
        "devices of a container that shares": ({CPU_MANAGER: "share", DEVICES: "none"}, []),
        "devices beside none": ({CPU_MANAGER: "none", DEVICES: "prefer"}, [DEVICES]),
        "quota beside share": ({CPU_MANAGER: "share", QUOTA: "keep"}, [QUOTA]),
    },
)
def test_policies_without_effect_are_warned_about(annotations: dict[str, str], idle: list[str]) -> None:
    """An SMT or quota policy without exclusive CPUs, and a NUMA policy without a claim, are warnings."""
    pod_claims = read_pod(pod(container("main", "2"), annotations=annotations))
    assert fields(pod_claims.warnings) == [f"metadata.annotations[{key}]" for key in idle]
    assert pod_claims.causes == ()


@table(
    "annotations, idle",
    {
        "a container of the pod has one": ({DEVICES: "require"}, []),
        "prefer needs none": ({DEVICES: "prefer", DEVICES_OF + "plain": "prefer"}, []),
        "the container has none": ({DEVICES_OF + "plain": "require"}, ["plain"]),
        "the container has one": ({DEVICES_OF + "main": "require"}, []),
        "an init container of such a pod": ({DEVICES_OF + "load": "require"}, []),
    },
)
def test_require_for_a_container_without_devices_is_a_warning(
    annotations: dict[str, str], idle: list[str]
) -> None:
    """An init container counts with the devices of the others."""
    document = pod(
        container("main", {"cpu": "2", "nvidia.com/gpu": "1"}),
        container("plain", "2"),
        init=[container("load", "1")],
        annotations={CPU_MANAGER: "exclusive", **annotations},
    )
    found = fields(read_pod(document).warnings)
    assert found == [f"metadata.annotations[{DEVICES_OF}{name}]" for name in idle]


def test_require_in_a_pod_without_devices_is_a_warning() -> None:
    """`require` of the pod and of its init container is a warning each without devices, also without a claim."""
    words = {CPU_MANAGER: "exclusive", DEVICES: "require", DEVICES_OF + "load": "require"}
    main, init = container("main", "2"), [container("load", "1")]
    found = read_pod(pod(main, init=init, annotations=words)).warnings
    assert fields(found) == [f"metadata.annotations[{key}]" for key in (DEVICES_OF + "load", DEVICES)]
    assert all(cause.message.startswith("require has no effect: no container to which") for cause in found)
    words[CPU_MANAGER] = "none"
    assert len(read_pod(pod(main, init=init, annotations=words)).warnings) == 2


def test_kata_keeps_its_quota() -> None:
    """A quota policy of a Kata pod has no effect, because Kata sizes its machine by the quota."""
    document = pod(
        container("main", "2"),
        annotations={CPU_MANAGER: "exclusive", QUOTA: "unset"},
        runtimeClassName="kata",
    )
    (warning,) = read_pod(document).warnings
    assert (warning.field, "Kata sizes its machine" in warning.message) == (
        f"metadata.annotations[{QUOTA}]",
        True,
    )


@table(
    "annotations, quota, crio_disables",
    {
        "of the pod": ({QUOTA: "keep"}, QuotaPolicy.KEEP, False),
        "narrower": (
            {QUOTA: "keep", "quota-policy.corepin.io/container.main": "unset"},
            QuotaPolicy.UNSET,
            False,
        ),
        "CRI-O's, of the pod": ({"cpu-quota.crio.io": "disable"}, None, True),
        "CRI-O's, of the container": ({"cpu-quota.crio.io/main": "disable"}, None, True),
        "CRI-O's, another word": ({"cpu-quota.crio.io": "enable"}, None, False),
        "CRI-O's, of another container": ({"cpu-quota.crio.io/other": "disable"}, None, False),
    },
)
def test_quota_words_are_part_of_an_exclusive_claim(
    annotations: dict[str, str], quota: QuotaPolicy | None, crio_disables: bool
) -> None:
    """A claim carries corepin's and CRI-O's word; a share claim has no quota policy."""
    (claim,) = read_pod(
        pod(container("main", "2"), annotations={CPU_MANAGER: "exclusive", **annotations})
    ).claims
    assert (claim.quota, claim.crio_disables_quota) == (quota, crio_disables)
    (share,) = read_pod(pod(container("main", "2"), annotations={CPU_MANAGER: "share", **annotations})).claims
    assert share.quota is None


def test_device_policies_are_part_of_the_claim() -> None:
    """The narrower scope wins, for claims of CPUs and of CMK's cores; without one the node decides."""
    narrow = {DEVICES: "none", "device-policy.corepin.io/container.main": "prefer"}
    for given_words, word in (({}, None), ({DEVICES: "none"}, "none"), (narrow, "prefer")):
        of_cpus = pod(container("main", "2"), annotations={CPU_MANAGER: "share", **given_words})
        of_cores = pod(container("main", {"cmk.intel.com/exclusive-cores": "1"}), annotations=given_words)
        for document in (of_cpus, of_cores):
            (claim,) = read_pod(document).claims
            assert claim.devices == (word and DevicePolicy(word))


def test_smt_and_numa_policies_are_part_of_the_claim() -> None:
    """The claim carries the policies of its own scope; a share claim has no SMT policy."""
    annotations = {
        CPU_MANAGER: "exclusive",
        SMT: "require",
        "smt-policy.corepin.io/container.two": "isolate",
        "cpu-manager.corepin.io/container.three": "share",
        NUMA: "single",
    }
    document = pod(
        container("main", "2"), container("two", "4"), container("three", "1"), annotations=annotations
    )
    main, two, three = read_pod(document).claims
    assert (main.smt, main.numa) == (SMTPolicy.REQUIRE, NUMAPolicy.SINGLE)
    assert two.smt is SMTPolicy.ISOLATE
    assert (three.policy, three.smt, three.numa) == (CPUPolicy.SHARE, None, NUMAPolicy.SINGLE)


def test_init_containers_and_sidecars_claim_too() -> None:
    """Roles: an ordinary init container, a native sidecar, a main container; ephemeral ones never claim."""
    document = pod(
        container("main", "2"),
        init=[container("setup", "4"), container("mesh", "1", restartPolicy="Always")],
        annotations={CPU_MANAGER: "exclusive"},
        ephemeralContainers=[container("debug", "1")],
    )
    assert [(claim.container, claim.role) for claim in read_pod(document).claims] == [
        ("setup", Role.INIT),
        ("mesh", Role.SIDECAR),
        ("main", Role.MAIN),
    ]


@table(
    "document, origin, policy",
    {
        "by label and selector": (launcher(), Origin.LAUNCHER, CPUPolicy.EXCLUSIVE),
        "the selector of KubeVirt 1.8": (
            pod(container("compute", "4"), labels=LAUNCHER, nodeSelector={"kubevirt.io/cpumanager": "true"}),
            Origin.LAUNCHER,
            CPUPolicy.EXCLUSIVE,
        ),
        "annotated too": (
            launcher(annotations={CPU_MANAGER: "exclusive"}),
            Origin.LAUNCHER,
            CPUPolicy.EXCLUSIVE,
        ),
        "share": (launcher(annotations={CPU_MANAGER: "share"}), Origin.ANNOTATION, CPUPolicy.SHARE),
        "none": (launcher(annotations={CPU_MANAGER: "none"}), None, None),
        "fraction": (launcher(compute=container("compute", "1500m")), None, None),
        "no selector": (pod(container("compute", "4"), labels=LAUNCHER), None, None),
        "no label": (pod(container("compute", "4"), nodeSelector={"cpumanager": "true"}), None, None),
    },
)
def test_a_launcher_claims_without_an_annotation(
    document: Any, origin: Origin | None, policy: CPUPolicy | None
) -> None:
    """The compute container of a dedicated launcher pod is an exclusive claim that must fit."""
    pod_claims = read_pod(document)
    assert [(claim.origin, claim.policy) for claim in pod_claims.claims] == (
        [(origin, policy)] if origin else []
    )
    assert pod_claims.causes == ()


@pytest.mark.parametrize(
    ("smt", "must"), [(None, False), ("prefer", False), ("require", True), ("isolate", True)]
)
def test_plain_exclusive_may_start_unpinned(smt: str | None, must: bool) -> None:
    """Only claims with whole cores, and VMs, must not start without them."""
    annotations = {CPU_MANAGER: "exclusive"} | ({SMT: smt} if smt else {})
    (claim,) = read_pod(pod(container("main", "2"), annotations=annotations)).claims
    assert claim.must_fit is must


@pytest.mark.parametrize(
    ("allocated", "count"),
    [("2", 2), ("500m", None), (None, 4), ("junk", 4)],
    ids=["given", "given a fraction", "not told", "unreadable"],
)
def test_the_count_is_what_the_kubelet_allocated(allocated: str | None, count: int | None) -> None:
    """A resize that the kubelet has deferred does not count yet."""
    document = pod(container("main", "4"), container("other", "2", "1"), annotations={MAIN: "exclusive"})
    document["status"] = {
        "containerStatuses": [
            {"name": "main", "allocatedResources": {"cpu": allocated} if allocated else None},
            {"name": "other", "allocatedResources": {"cpu": "1"}},
        ]
    }
    assert [claim.count for claim in read_pod(document).claims] == ([count] if count else [])


@table(
    "claiming",
    {
        "annotation": {"annotations": {CPU_MANAGER: "exclusive"}},
        "virtual machine": {"labels": LAUNCHER, "nodeSelector": DEDICATED},
        "CMK resource": {"init": [container("first", {CORES: 1})]},
    },
)
def test_a_crowd_that_asks_for_cpus_is_refused_unread(claiming: Any) -> None:
    """A pod of more containers than an agent can remember has no claims, whatever else is wrong with it."""
    crowd = [container(f"c{number}", "x") for number in range(MOST_CONTAINERS + 1)]
    asked = read_pod(pod(*crowd, **claiming))
    assert (asked.claims, asked.members, asked.warnings) == ((), (), ())
    assert [cause.field for cause in asked.causes] == ["spec.containers"]
    assert asked.claim_of("c0") is None


def test_as_many_containers_as_an_agent_remembers_may_claim() -> None:
    """A pod of exactly the most containers, init containers among them, is read."""
    main = [container(f"c{number}", "1") for number in range(MOST_CONTAINERS - 1)]
    asked = read_pod(pod(*main, init=[container("first", "1")], annotations={CPU_MANAGER: "exclusive"}))
    assert (len(asked.claims), asked.causes) == (MOST_CONTAINERS, ())


def test_a_pod_without_claims_may_have_many_containers() -> None:
    """Pods without claims may have as many containers as the API server lets them have."""
    asked = read_pod(pod(*(container(f"c{number}") for number in range(MOST_CONTAINERS + 1))))
    assert (asked.claims, asked.causes) == ((), ())


def test_claims_are_found_by_container() -> None:
    """The parsed claims of a pod are found by the name of a container."""
    pod_claims = read_pod(pod(container("main", "2"), annotations={CPU_MANAGER: "exclusive"}))
    assert pod_claims.claim_of("main") == exclusive(2)
    assert pod_claims.claim_of("other") is None


words = st.sampled_from(
    ["none", "exclusive", "share", "prefer", "require", "isolate", "single", "bind", "", "x"]
)
keys = st.sampled_from(
    [CPU_MANAGER, CRANE, SMT, NUMA, MEMORY, MAIN, "numa-policy.corepin.io/container.b", "x"]
)
amounts = st.dictionaries(
    st.sampled_from([CORES, OTHER_CORES, "cpu", "memory"]),
    st.sampled_from(["2", "0", "-1", "1500m", "junk", 1, 0.5]),
    max_size=3,
)
resources = st.none() | st.fixed_dictionaries(
    {}, optional={"limits": st.none() | amounts, "requests": st.none() | amounts}
)
containers = st.fixed_dictionaries(
    {"name": st.sampled_from(["main", "b", "c"])},
    optional={"resources": resources, "restartPolicy": st.sampled_from([None, "Always", "Never"])},
)
pods = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.none()
        | st.fixed_dictionaries(
            {}, optional={"annotations": st.none() | st.dictionaries(keys, words, max_size=4)}
        ),
        "spec": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "containers": st.none() | st.lists(containers, max_size=3),
                "initContainers": st.none() | st.lists(containers, max_size=2),
                "resources": resources,
            },
        ),
    },
)


@given(pods)
def test_reading_never_fails_and_says_where(document: Any) -> None:
    """Reading never fails: of any document the claims are valid, and every cause has a field and a message."""
    pod_claims = read_pod(document)
    assert all(claim.count >= 1 for claim in pod_claims.claims)
    assert all(cause.field and cause.message for cause in (*pod_claims.causes, *pod_claims.warnings))
    assert qos_class(document) in QoSClass
