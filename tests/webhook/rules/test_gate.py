"""The gate container: which pods get it, its position, and that its name is reserved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pinning.contract import GATE_CONTAINER, QoSClass
from pinning.pods.budget import budget_of
from pinning.pods.claims import read_pod
from pinning.pods.qos import qos_class
from tests.pods import CORES, CPU_MANAGER, SMT, container, fields, launcher, pod
from tests.tables import table
from tests.webhook.requests import generated, request
from tests.webhook.rules.mutated import patched, planned, reviewed, templated
from webhook.config.mutations import BUILT_IN, Mutations, load_mutations
from webhook.config.settings import load_settings
from webhook.review.handler import Decider
from webhook.review.response import Denied

GATE = b"{gate: true, gateImage: 'registry.example/corepin:1', sidecarLimits: claims}"
ON, OFF = GATE, b"sidecarLimits: claims"
ISOLATE = {SMT: "isolate"}
TWO = container("main", {"cpu": "2", "memory": "1Gi"})
NAMED = load_mutations(b"mutations: {perPod: {spec: {volumes: [{name: corepin-gate, emptyDir: {}}]}}}")


def steps(document: Any, settings: bytes = ON, mutations: Mutations = BUILT_IN) -> list[Any]:
    """Return the patch of a new pod."""
    return [dict(step) for step in planned(document, settings, mutations).operations]


def applied(document: Any, settings: bytes = ON, mutations: Mutations = BUILT_IN) -> Any:
    """Return the pod after its patch, of which nothing is shared with another one."""
    return patched(document, settings, mutations)


def gates(document: Any) -> list[Any]:
    """Return the init containers with the gate's name."""
    listed = document["spec"].get("initContainers") or ()
    return [it for it in listed if it["name"] == GATE_CONTAINER]


def refused(document: Any, settings: bytes = ON) -> list[str]:
    """Return the fields that refuse a pod as it is."""
    return fields(reviewed(document, settings).causes)


@table(
    "document, waits",
    {
        "isolate": (pod(TWO, annotations=ISOLATE), True),
        "require": (pod(TWO, annotations={SMT: "require"}), True),
        "cmk": (pod(container("main", {CORES: "1"})), True),
        "launcher": (launcher(), True),
        "init container claims": (pod(container("late"), init=[TWO], annotations=ISOLATE), True),
        "exclusive": (pod(TWO, annotations={CPU_MANAGER: "exclusive"}), False),
        "share": (pod(TWO, annotations={CPU_MANAGER: "share", **ISOLATE}), False),
        "prefer": (pod(TWO, annotations={SMT: "prefer"}), False),
        "no claim": (pod(container("main"), annotations={"cmk.intel.com/mutate": "true"}), False),
        "plain": (pod(TWO), False),
        "windows": (pod(TWO, annotations=ISOLATE, os={"name": "windows"}), False),
    },
)
def test_pods_whose_claims_must_fit_wait(document: Any, waits: bool) -> None:
    """A pod that may run without CPUs of its own gets no gate, and no pod does where the gate is off."""
    assert len(gates(applied(document))) == waits
    assert gates(applied(document, OFF)) == []


def test_gate_is_first_and_restricted() -> None:
    """The gate is the first init container, without rights, token and writable mounts, and has the restart policy."""
    document = pod(TWO, init=[container("setup")], annotations=ISOLATE, restartPolicy="Never")
    spec = applied(document)["spec"]
    assert [it["name"] for it in spec["initContainers"]] == [GATE_CONTAINER, "setup"]
    amounts = {"cpu": "200m", "memory": "64Mi"}
    assert spec["initContainers"][0] == {
        "name": "corepin-gate",
        "image": "registry.example/corepin:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["corepin", "gate"],
        "env": [{"name": "COREPIN_RESTART_POLICY", "value": "Never"}],
        "resources": {"requests": amounts, "limits": amounts},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsGroup": 65532,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {
                "name": "corepin-gate",
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                "readOnly": True,
            }
        ],
    }
    annotation = "metadata.annotations['status.corepin.io/cpus']"
    items = [{"path": "cpus", "fieldRef": {"fieldPath": annotation}}]
    assert spec["volumes"] == [{"name": "corepin-gate", "downwardAPI": {"items": items}}]


def test_restart_policy_is_the_default_where_none_is_stated() -> None:
    """The gate of a pod without a restart policy, as in a file, has the API server's default."""
    (gate,) = gates(applied(pod(TWO, annotations=ISOLATE)))
    assert gate["env"][0]["value"] == "Always"


def test_gate_is_the_last_patch_step() -> None:
    """The gate is the last step of the patch, because it shifts the indexes of init containers."""
    init = [container("setup", {CORES: "1"}), container("mesh", restartPolicy="Always")]
    document = pod(container("main", {CORES: "2"}), init=init)
    patch = steps(document)
    assert [step["path"] for step in patch if GATE_CONTAINER in str(step["value"])] == [
        "/spec/volumes/-",
        "/spec/initContainers/0",
    ]
    assert patch[-1]["path"] == "/spec/initContainers/0"
    spec = applied(document)["spec"]
    told = [[it["value"] for it in member.get("env", ())] for member in spec["initContainers"]]
    assert told == [["Always"], ["1"], []]
    assert len(spec["initContainers"][2]["volumeMounts"]) == 2


@given(generated, st.sampled_from([BUILT_IN, NAMED]))
@hypothesis_settings(max_examples=300, deadline=None)
def test_gate_changes_nothing_else(document: Any, mutations: Mutations) -> None:
    """For any pod the gate changes neither other fields nor the QoS class, and a second call adds nothing."""
    result = applied(document, ON, mutations)
    assert steps(result, ON, mutations) == []
    without = applied(document, OFF, mutations)
    assert qos_class(result) is qos_class(without)
    if found := gates(result):
        assert found == [result["spec"]["initContainers"].pop(0)]
        volume = result["spec"]["volumes"].pop()
        assert found[0]["volumeMounts"][0]["name"] == volume["name"]
        assert volume["downwardAPI"]
        for key in ("initContainers", "volumes"):
            result["spec"][key] = result["spec"][key] or None
            without["spec"][key] = without["spec"].get(key) or None
    assert result == without


@given(generated)
@hypothesis_settings(max_examples=200, deadline=None)
def test_gate_claims_nothing(document: Any) -> None:
    """For any pod claims, causes and warnings are the same with the gate, but for init containers' indexes."""
    result = applied(document)
    with_gate, without = read_pod(result), read_pod(applied(document, OFF))
    assert with_gate.claims == without.claims
    for found in ("causes", "warnings"):
        messages = [[cause.message for cause in getattr(it, found)] for it in (with_gate, without)]
        assert messages[0] == messages[1]


def test_users_volume_of_its_name_stays() -> None:
    """The gate reads its own volume, even if the user has one of that name."""
    own: list[Any] = [{"name": name, "emptyDir": {}} for name in ("corepin-gate", "corepin-gate-2")]
    spec = applied(pod(TWO, annotations=ISOLATE, volumes=own))["spec"]
    assert spec["volumes"][:2] == own
    assert spec["volumes"][2]["name"] == "corepin-gate-3"
    assert spec["initContainers"][0]["volumeMounts"][0]["name"] == "corepin-gate-3"


@pytest.mark.parametrize("own", [[], ["mine"]])
def test_volume_of_the_mutations_file_stays(own: list[str]) -> None:
    """A volume of that name from the mutations file stays too."""
    listed: Any = {"volumes": [{"name": name, "emptyDir": {}} for name in own]} if own else {}
    volumes = applied(pod(container("main", {CORES: "1"}), **listed), ON, NAMED)["spec"]["volumes"]
    assert [(it["name"], "downwardAPI" in it) for it in volumes] == [
        *((name, False) for name in own),
        ("corepin-gate", False),
        ("corepin-gate-2", True),
    ]


def test_a_volume_of_the_gates_name_is_part_of_the_cache_key() -> None:
    """A pod whose volume has the gate's name does not share a cached answer with one without."""
    rules = Decider(load_settings(ON), BUILT_IN)
    plain = rules.mutate(request(pod(TWO, annotations=ISOLATE, volumes=[{"name": "x"}])))
    own = rules.mutate(request(pod(TWO, annotations=ISOLATE, volumes=[{"name": "corepin-gate"}])))
    assert plain != own


def test_another_webhook_may_come_before_it() -> None:
    """A second call finds its gate behind another webhook's init container and adds no second one."""
    document = applied(pod(TWO, annotations=ISOLATE))
    document["spec"]["initContainers"].insert(0, container("mesh", restartPolicy="Always"))
    patch = steps(document)
    assert GATE_CONTAINER not in str(patch)
    assert refused(applied(document)) == []


def test_gate_of_a_launcher_keeps_it_guaranteed() -> None:
    """In a launcher sidecars get their limits and the gate has its own, so that the pod stays Guaranteed."""
    result = applied(launcher(container("proxy"), init=[container("setup")]))
    assert qos_class(result) is QoSClass.GUARANTEED
    assert gates(result)[0]["resources"]["limits"] == {"cpu": "200m", "memory": "64Mi"}
    assert result["spec"]["initContainers"][1]["resources"]["limits"] == {"cpu": "200m", "memory": "64M"}
    assert refused(result) == []


@table(
    "document",
    {
        "best effort": pod(container("main", {CORES: "1"})),
        "pod level": pod(TWO, annotations=ISOLATE, resources={"limits": {"cpu": "2", "memory": "1Gi"}}),
    },
)
def test_gate_states_nothing_where_its_containers_need_not(document: Any) -> None:
    """The gate states no resources where they would change the QoS class or exceed the pod's limits."""
    (gate,) = gates(applied(document))
    assert "resources" not in gate


@table(
    "requests, limits, stated",
    {
        "both": ({"cpu": "4"}, {}, {"cpu": "200m", "memory": "64Mi"}),
        "cpu beside a limit of memory": ({"cpu": "4"}, {"memory": "1Gi"}, {"cpu": "200m"}),
        "no more than the pod requests": (
            {"cpu": "4", "memory": "48Mi"},
            {},
            {"cpu": "200m", "memory": "48Mi"},
        ),
    },
)
def test_gate_lets_the_api_server_fill_in_the_pods_limit(requests: Any, limits: Any, stated: Any) -> None:
    """A pod-level limit is filled in only if every container has one; without it the pod would have no budget."""
    main = container("main", {"cpu": "2", "memory": "1Gi"})
    document = pod(main, annotations=ISOLATE, resources={"requests": requests, "limits": limits})
    result = applied(document)
    (gate,) = gates(result)
    assert gate["resources"]["limits"] == gate["resources"]["requests"] == stated
    assert budget_of(result) == budget_of(document) == 4
    assert refused(result) == []


def test_the_operator_sets_the_resources_of_the_gate() -> None:
    """The operator sets the gate's resources, for a LimitRange; a whole CPU is not a claim and causes no warning."""
    settings = GATE[:-1] + b", gateResources: {cpu: 1, memory: 128Mi}}"
    document = pod(TWO, annotations={CPU_MANAGER: "exclusive", **ISOLATE})
    result = applied(document, settings)
    (gate,) = gates(result)
    assert gate["resources"]["requests"] == gate["resources"]["limits"] == {"cpu": "1", "memory": "128Mi"}
    assert [claim.container for claim in read_pod(result).claims] == ["main"]
    verdict = reviewed(result, settings)
    assert (verdict.causes, verdict.warnings) == ((), ())


# Its name.


def gated(**changes: Any) -> Any:
    """Return a pod with its gate, some fields of which are other ones."""
    document = applied(pod(TWO, annotations=ISOLATE))
    document["spec"]["initContainers"][0].update(changes)
    return document


@table(
    "changes",
    {
        "a mirror's image": {"image": "mirror.example/corepin:1"},
        "a variable": {"env": [{"name": "A"}, {"name": "COREPIN_RESTART_POLICY", "value": "Always"}]},
        "other mounts": {"volumeMounts": []},
    },
)
def test_other_webhooks_may_change_it(changes: Any) -> None:
    """Changes that other webhooks make to every container are accepted on the gate."""
    assert refused(gated(**changes)) == []


@table(
    "document, field",
    {
        "main": (pod(container(GATE_CONTAINER, "2"), annotations=ISOLATE), "spec.containers[0].name"),
        "sidecar": (gated(restartPolicy="Always"), "spec.initContainers[0].name"),
        "another program": (gated(env=[]), "spec.initContainers[0].name"),
        "of another pod": (
            gated(env=[{"name": "COREPIN_RESTART_POLICY", "value": "Never"}]),
            "spec.initContainers[0].name",
        ),
    },
)
def test_its_name_is_its_own(document: Any, field: str) -> None:
    """A user's container with the gate's name is refused, with gates on or off; a template gets a warning."""
    assert gates(document) == gates(applied(document)), "none is added beside it"
    for settings in (ON, OFF):
        assert field in refused(applied(document, settings), settings)
        assert field in fields(templated(document, settings).causes)


def test_annotation_for_it_is_refused() -> None:
    """A policy annotation for the gate is refused."""
    key = f"cpu-manager.corepin.io/container.{GATE_CONTAINER}"
    document = gated()
    document["metadata"]["annotations"][key] = "exclusive"
    assert f"metadata.annotations[{key}]" in refused(document)


def test_silent_gate_of_a_users_own_costs_the_machine() -> None:
    """A launcher that is not Guaranteed is refused, also if its gate is the reason."""
    document = applied(launcher())
    del document["spec"]["initContainers"][0]["resources"]
    assert refused(document) == [
        f"spec.initContainers[0].resources.limits[{name}]" for name in ("cpu", "memory")
    ]


def test_pod_without_its_gate_is_refused() -> None:
    """A pod without its gate is refused, since it could start unpinned."""
    document = applied(pod(TWO, annotations=ISOLATE), OFF)
    assert refused(document, OFF) == []
    assert refused(document) == ["spec.initContainers"]
    answer = Decider(load_settings(ON), BUILT_IN).validate(request(document))
    assert isinstance(answer, Denied)
    assert answer.causes[0].message.startswith("not injected (corepin-gate is missing): either ")
