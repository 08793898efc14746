"""One admission request decided: kinds, operations, malformed objects, and what holds for every generated pod."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import jsonpatch
import kubernetes_validate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pods import CORES, CPU_MANAGER, SMT, container, pod
from tests.tables import table
from tests.webhook.requests import BEYOND, RULES, denied, generated, request, updated
from webhook.config.mutations import BUILT_IN, load_mutations
from webhook.config.settings import Settings, load_settings
from webhook.review import wire
from webhook.review.handler import Decider
from webhook.review.response import Allowed, Denied, Patched, encode
from webhook.rules.raw_json import Malformed

CONTROLLER = "system:serviceaccount:kubevirt:kubevirt-controller"
NO_POLICY = f"metadata.annotations[{CPU_MANAGER}]"


@table(
    "asked",
    {
        "DELETE": request(None, pod(container("main", {CORES: "1"})), operation="DELETE"),
        "CONNECT": request(None, operation="CONNECT", sub="exec"),
        "T4 a kind that is not ours": request({"spec": 1}, kind=("", "NotAPod")),
        "a Pod of another group": request({"spec": 1}, kind=("other.io", "Pod")),
        "ephemeral containers": request(
            {"spec": {"ephemeralContainers": 1}},
            kind=("", "Pod"),
            operation="UPDATE",
            sub="ephemeralcontainers",
        ),
        "a mirror pod": request(pod(annotations={"kubernetes.io/config.mirror": "x", CPU_MANAGER: "?"})),
    },
)
def test_what_is_not_ours_is_admitted_untouched(asked: wire.Request) -> None:
    """Other kinds and operations are admitted without patch and verdict, whatever they contain."""
    assert RULES.mutate(asked) == Allowed()
    assert RULES.validate(asked) == Allowed()


def test_an_answer_is_a_v1_review_without_the_request() -> None:
    """The uid is echoed, the request is not, and the patch is base64 text beside its type."""
    asked = request(pod(container("main", {CORES: "2"})))
    review = json.loads(encode(asked.uid, RULES.mutate(asked)))
    assert set(review) == {"apiVersion", "kind", "response"}
    assert (review["response"]["uid"], review["response"]["allowed"]) == ("1-2-3", True)
    assert review["response"]["patchType"] == "JSONPatch"
    steps = json.loads(base64.b64decode(review["response"]["patch"]))
    assert {step["op"] for step in steps} == {"add"}, "nothing is removed where the file names no account"


def test_only_creation_is_patched() -> None:
    """An UPDATE that reaches /mutate, by a wrong registration, gets no patch."""
    document = pod(container("main", {CORES: "1"}))
    assert isinstance(RULES.mutate(request(document)), Patched)
    assert RULES.mutate(request(document, document, operation="UPDATE")) == Allowed()
    assert RULES.mutate(request(document, sub="resize", operation="CREATE")) == Allowed()


def test_warnings_come_without_a_patch_too() -> None:
    """A pod that asks for sidecar limits and gets none has a warning, although nothing is patched."""
    answer = RULES.mutate(request(pod(annotations={"sidecar-limits.corepin.io/pod": "true"})))
    assert isinstance(answer, Allowed)
    assert answer.warnings[0].startswith("metadata.annotations[sidecar-limits.corepin.io/pod]: corepin: ")


def test_a_file_beyond_the_usual_keys_sees_the_whole_pod() -> None:
    """With a mutations file that adds unusual keys the whole pod is decoded, and its other values stay."""
    rules = Decider(Settings(), load_mutations(b"mutations: {perPod: {spec: {dnsPolicy: Default}}}"))
    document = pod(container("main", {CORES: "1"}), dnsPolicy="None")
    answer = rules.mutate(request(document))
    assert isinstance(answer, Patched)
    assert not any("dnsPolicy" in str(step["path"]) for step in answer.operations)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"spec": {"containers": {}}}, "$.request.object.spec.containers"),
        ({"metadata": {"annotations": {"a": 1}}}, "$.request.object.metadata.annotations[...]"),
        (
            {"spec": {"containers": [{"resources": {"limits": {"cpu": True}}}]}},
            "$.request.object.spec.containers[0].resources.limits[...]",
        ),
        ([], "$.request.object"),
        (None, "$.request.object"),
    ],
)
def test_an_object_that_cannot_be_read_is_the_callers_fault(document: Any, path: str) -> None:
    """An unreadable object is an error of the client, with the path inside of the review."""
    for decide in (RULES.mutate, RULES.validate):
        with pytest.raises(Malformed) as refused:
            decide(request(document))
        assert refused.value.path.startswith(path)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**400], ids=["2^64", "-2^63-1", "10^400"])
def test_a_number_of_more_than_64_bits_is_the_callers_fault(number: int) -> None:
    """A number of more than 64 bits is the client's error: the API server writes quantities as strings."""
    asked = request(pod(container("a", {"cpu": number}), annotations={CPU_MANAGER: "exclusive"}))
    for judge in (RULES.mutate, RULES.validate):
        with pytest.raises(Malformed, match="more than 64 bits: write it as a string"):
            judge(asked)


def test_a_refusal_names_the_object() -> None:
    """A refusal names kind, name or generateName, and every cause."""
    wrong = pod(annotations={CPU_MANAGER: "all"})
    answer = RULES.validate(request(wrong, name="demo"))
    assert isinstance(answer, Denied)
    assert (answer.kind, answer.name, denied(answer)) == ("Pod", "demo", [NO_POLICY])
    generated = copy.deepcopy(wrong)
    generated["metadata"] = {**(generated["metadata"] or {}), "generateName": "web-", "name": None}
    named = RULES.validate(request(generated))
    assert isinstance(named, Denied)
    assert named.name == "web-..."


def test_a_pod_that_is_being_deleted_is_never_refused() -> None:
    """A wrong pod that is being deleted may lose its finalizers."""
    old = pod(annotations={CPU_MANAGER: "all"})
    new = pod(annotations={CPU_MANAGER: "worse"})
    new["metadata"] = {**(new["metadata"] or {}), "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert updated(new, old) == Allowed()


def test_a_resize_is_judged_by_the_spec() -> None:
    """A resize to a fraction is refused even if the status still has the whole number."""
    annotations = {CPU_MANAGER: "exclusive"}
    old, new = (pod(container("main", cpu), annotations=annotations) for cpu in ("2", "2500m"))
    new["status"] = {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "2"}}]}
    assert denied(updated(new, old, sub="resize")) == [NO_POLICY]


WORKLOADS = [
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("apps", "DaemonSet"),
    ("apps", "ReplicaSet"),
    ("batch", "Job"),
    ("batch", "CronJob"),
]


def workload(kind: str, template: Any) -> Any:
    """Return a workload that carries a pod template."""
    spec = {"template": template}
    return {
        "metadata": {"name": "web"},
        "spec": {"jobTemplate": {"spec": spec}} if kind == "CronJob" else spec,
    }


@pytest.mark.parametrize("kind", WORKLOADS, ids=[kind for _, kind in WORKLOADS])
def test_a_workload_is_warned_never_refused(kind: tuple[str, str]) -> None:
    """A workload with a wrong template is admitted with a warning, since refusals of its pods are only events."""
    wrong = workload(kind[1], pod(annotations={CPU_MANAGER: "all"}))
    answer = RULES.validate(request(wrong, kind=kind))
    assert isinstance(answer, Allowed)
    root = "spec.jobTemplate.spec.template" if kind[1] == "CronJob" else "spec.template"
    assert answer.warnings[0].startswith(f"{root}.{NO_POLICY}: corepin: 'all' is not a policy")
    same = copy.deepcopy(wrong)
    same["spec"]["replicas"] = 5
    assert updated(same, wrong, kind=kind) == Allowed()
    sound = workload(kind[1], pod(container("main", "2"), annotations={CPU_MANAGER: "share"}))
    assert updated(sound, wrong, kind=kind) == Allowed()


@pytest.mark.parametrize(("limits", "warned"), [({"cpu": "2", "nvidia.com/gpu": "1"}, 0), ({"cpu": "2"}, 1)])
def test_a_template_that_names_a_device_may_require_cpus_beside_it(
    limits: dict[str, str], warned: int
) -> None:
    """The reader of templates keeps the limits of device plugins."""
    notes = {"cpu-manager.corepin.io/pod": "exclusive", "device-policy.corepin.io/pod": "require"}
    containers = [{"name": "main", "resources": {"limits": limits, "requests": limits}}]
    template = {"metadata": {"annotations": notes}, "spec": {"containers": containers}}
    answer = RULES.validate(request(workload("Deployment", template), kind=("apps", "Deployment")))
    assert isinstance(answer, Allowed)
    assert sum("has no effect" in warning for warning in answer.warnings) == warned


@pytest.mark.parametrize("document", [{}, {"spec": None}, {"spec": {"template": None}}, {"spec": 5}])
def test_a_workload_without_a_template_is_admitted(document: Any) -> None:
    """A workload without a template is admitted: the API server refuses it itself."""
    assert RULES.validate(request(document, kind=("apps", "Deployment"))) == Allowed()


def test_a_template_that_cannot_be_read_is_named() -> None:
    """The path of an unreadable template starts at its workload."""
    with pytest.raises(Malformed) as refused:
        RULES.validate(request({"spec": {"template": {"spec": 5}}}, kind=("apps", "Deployment")))
    assert refused.value.path == "$.request.object.spec.template.spec"


VMI = ("kubevirt.io", "VirtualMachineInstance")
MACHINES = {
    VMI: "",
    ("kubevirt.io", "VirtualMachine"): "spec.template.",
    ("kubevirt.io", "VirtualMachineInstanceReplicaSet"): "spec.template.",
    ("pool.kubevirt.io", "VirtualMachinePool"): "spec.virtualMachineTemplate.spec.template.",
}


def machine(kind: tuple[str, str], annotations: Any = None, **cpu: Any) -> Any:
    """Return an object of one of KubeVirt's kinds around the same virtual machine."""
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"domain": {"cpu": cpu, "memory": {"guest": "1Gi"}, "devices": {}}},
    }
    if kind == VMI:
        return template
    inner = {"template": template}
    return {"spec": {"virtualMachineTemplate": {"spec": inner}} if kind[1].endswith("Pool") else inner}


@pytest.mark.parametrize(("kind", "root"), MACHINES.items(), ids=[kind for _, kind in MACHINES])
def test_machines_are_judged_where_their_spec_lies(kind: tuple[str, str], root: str) -> None:
    """A wrong CPU spec and a wrong annotation of ours are refused together, in every kind."""
    wrong = machine(kind, {CPU_MANAGER: "all"}, cores=2, isolateEmulatorThread=True)
    answer = RULES.validate(request(wrong, kind=kind))
    assert denied(answer) == [f"{root}spec.domain.cpu.isolateEmulatorThread", f"{root}{NO_POLICY}"]
    sound = machine(kind, {CPU_MANAGER: "share", "cpu-manager.corepin.io/container.compute": "none"}, cores=2)
    assert RULES.validate(request(sound, kind=kind)) == Allowed()


def test_a_machine_without_its_template_is_refused() -> None:
    """A machine without its template is refused with that field."""
    assert denied(RULES.validate(request({"spec": {}}, kind=("kubevirt.io", "VirtualMachine")))) == [
        "spec.template"
    ]


def test_an_update_of_a_virtual_machine_is_judged_by_what_it_changes() -> None:
    """A wrong machine may be started, stopped and labelled; a new mistake is refused."""
    kind = ("kubevirt.io", "VirtualMachine")
    old = machine(kind, cores=2, isolateEmulatorThread=True)
    started = copy.deepcopy(old)
    started["spec"]["runStrategy"] = "Always"
    assert updated(started, old, kind=kind) == Allowed()
    new = machine(kind, {CPU_MANAGER: "all"}, cores=2, isolateEmulatorThread=True)
    assert denied(updated(new, old, kind=kind)) == [f"spec.template.{NO_POLICY}"]
    new["metadata"] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert updated(new, old, kind=kind) == Allowed()


def test_an_update_of_a_virtual_machine_may_repair_it_and_not_take_its_template() -> None:
    """An update may repair a wrong virtual machine, but not remove its template."""
    kind = ("kubevirt.io", "VirtualMachine")
    wrong, sound = machine(kind, cores=2, isolateEmulatorThread=True), machine(kind, cores=2)
    assert updated(sound, wrong, kind=kind) == Allowed()
    for old in (wrong, sound):
        assert denied(updated({"spec": {}}, old, kind=kind)) == ["spec.template"]


def test_a_running_machine_is_changed_by_kubevirt_alone() -> None:
    """A user cannot change a VMI's spec; KubeVirt can, except maxSockets; status updates are not checked."""
    old, new = machine(VMI, cores=2), machine(VMI, {CPU_MANAGER: "all"}, cores=4)
    asked: Any = {"kind": VMI, "operation": "UPDATE"}
    assert denied(RULES.validate(request(new, old, **asked))) == ["spec.domain.cpu.cores", NO_POLICY]
    assert denied(RULES.validate(request(new, old, user=CONTROLLER, **asked))) == [NO_POLICY]
    assert RULES.validate(request(new, old, sub="status", **asked)) == Allowed()
    sockets = machine(VMI, cores=2, maxSockets=8)
    assert denied(RULES.validate(request(sockets, old, user=CONTROLLER, **asked))) == [
        "spec.domain.cpu.maxSockets"
    ]


def test_the_cluster_settings_of_kubevirt_are_heeded() -> None:
    """Architecture and feature gate Sidecar come from the configuration."""
    rules = Decider(load_settings(b"{feature-gates: CPUManager, kubevirt: {architecture: arm64}}"), BUILT_IN)
    hooked = machine(
        VMI, {"hooks.kubevirt.io/hookSidecars": "[{}]"}, cores=2, threads=2, dedicatedCpuPlacement=True
    )
    assert denied(rules.validate(request(hooked, kind=VMI))) == [
        "spec.architecture",
        "metadata.annotations[hooks.kubevirt.io/hookSidecars]",
    ]


def contained(small: Any, large: Any) -> bool:
    """Return whether one value contains the other, lists in the same order."""
    if isinstance(small, dict):
        return all(
            value is None or (key in large and contained(value, large[key])) for key, value in small.items()
        )
    if isinstance(small, list):
        return len(small) <= len(large) and all(
            contained(item, other) for item, other in zip(small, large, strict=False)
        )
    return bool(small == large)


@given(generated, st.sampled_from([BUILT_IN, BEYOND]))
@settings(max_examples=150, deadline=None)
def test_a_patch_applies_loses_nothing_and_is_made_once(document: Any, mutations: Any) -> None:
    """For generated pods: the patch applies, the second pass is empty, what the user wrote stays, the schema holds."""
    rules = Decider(load_settings(b"sidecarLimits: claims"), mutations)
    answer = rules.mutate(request(document))
    if not isinstance(answer, Patched):
        return
    result = jsonpatch.apply_patch(document, [dict(step) for step in answer.operations])
    assert not isinstance(rules.mutate(request(result)), Patched)
    original = copy.deepcopy(document)
    if original["spec"].get("serviceAccountName") in {"", "default"}:
        del original["spec"]["serviceAccountName"]
    if result["spec"].get("serviceAccountName") == "sa":
        _forget_lost_token(original["spec"], result["spec"])
    assert contained(original, result)
    if _is_valid(document):
        assert _is_valid(result)


def _forget_lost_token(spec: Any, left: Any) -> None:
    """Drop the volume that the API server adds, and its mounts, where the other pod has lost it."""
    before, after = ({it["name"] for it in pod.get("volumes") or ()} for pod in (spec, left))
    if "kube-api-access-x7k2p" not in before - after:
        return
    for owner in (spec, *spec["containers"], *(spec.get("initContainers") or ())):
        for kind in ("volumes", "volumeMounts"):
            if owner.get(kind):
                owner[kind] = [it for it in owner[kind] if it["name"] != "kube-api-access-x7k2p"]


def test_the_schema_refuses_a_typing_error() -> None:
    """The schema that checks patched pods refuses a misspelt field."""
    assert _is_valid({"apiVersion": "v1", "kind": "Pod", **pod()})
    assert not _is_valid({"apiVersion": "v1", "kind": "Pod", **pod(volums=[])})


def _is_valid(document: Any) -> bool:
    try:
        kubernetes_validate.validate(document, "1.37", strict=True)
    except kubernetes_validate.ValidationError:
        return False
    return True


def test_status_that_a_user_writes_decides_nothing() -> None:
    """A status in a new pod is ignored, also where whole pods are read."""
    rules = Decider(
        Settings(), load_mutations(b"mutations:\n  perPod: {spec: {dnsPolicy: Default}}\n  perContainer: {}")
    )
    status = {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "2"}}]}
    wrong: Any = pod(container("main", "1500m", "1500m"), annotations={CPU_MANAGER: "exclusive"}) | {
        "status": status
    }
    assert denied(rules.validate(request(wrong))) == [NO_POLICY]
    wrong["metadata"]["annotations"] = {CPU_MANAGER: "exclusive", SMT: "isolate"}
    assert rules.mutate(request(wrong)) == Allowed()
