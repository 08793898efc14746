"""Admission requests as the API server sends them, and their refusals."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from pinning.contract import GUARDED
from tests.pods import CORES, CPU_MANAGER, LAUNCHER, SMT, token_mount, token_volume
from webhook.config.mutations import BUILT_IN, load_mutations
from webhook.config.settings import Settings
from webhook.review import wire
from webhook.review.handler import Decider
from webhook.review.response import Denied

RULES = Decider(Settings(), BUILT_IN)


def request(
    new: Any,
    old: Any = None,
    *,
    kind: tuple[str, str] = ("", "Pod"),
    operation: str = "CREATE",
    sub: str | None = None,
    name: str | None = None,
    user: str = "jane",
) -> wire.Request:
    """Return the request that the API server would send."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "1-2-3",
            "kind": {"group": kind[0], "version": "v1", "kind": kind[1]},
            "operation": operation,
            "subResource": sub,
            "name": name,
            "userInfo": {"username": user},
            "object": new,
            "oldObject": old,
        },
    }
    return wire.decode(json.dumps(review).encode())


def updated(new: Any, old: Any, **more: Any) -> Any:
    """Return the answer to an update."""
    return RULES.validate(request(new, old, operation="UPDATE", **more))


def denied(answer: Any) -> list[str]:
    """Return the fields of a refusal, none for an admission."""
    return [cause.field for cause in answer.causes] if isinstance(answer, Denied) else []


# Pods that are valid in the Kubernetes 1.37 schema; each member that corepin reads is absent, null, empty or set.
name = st.sampled_from(["cmk-install-dir", "cmk-config-dir", "data", "x"])
quantity = st.sampled_from(["1", "2", "1500m", "500m", "4"])
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", CORES, "ephemeral-storage"]), quantity, max_size=3
)
resources = st.none() | st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts})
volume = st.builds(
    lambda named, source: {"name": named, **source},
    name,
    st.sampled_from([{"emptyDir": {}}, {"hostPath": {"path": "/x"}}]),
) | st.sampled_from([token_volume("kube-api-access-x7k2p"), token_volume("kube-api-access-mine")])
mount = st.fixed_dictionaries(
    {"name": name, "mountPath": st.sampled_from(["/opt/bin", "/etc/cmk", "/data"])}
) | st.sampled_from([token_mount("kube-api-access-x7k2p"), token_mount("kube-api-access-mine")])
variable = st.fixed_dictionaries(
    {"name": st.sampled_from(["CMK_NUM_CORES", "A"])}, optional={"value": st.sampled_from(["1", "7", ""])}
)
toleration = st.sampled_from(
    [
        {"operator": "Exists"},
        {"key": "cmk", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        {"key": "a"},
    ]
)
one_container = st.fixed_dictionaries(
    {"name": st.sampled_from(["main", "compute", "b", "c"]), "image": st.just("app:1")},
    optional={
        "resources": resources,
        "env": st.none() | st.lists(variable, max_size=3),
        "volumeMounts": st.none() | st.lists(mount, max_size=3),
        "restartPolicy": st.just("Always"),
    },
)
annotation = st.dictionaries(
    st.sampled_from(
        [
            "cmk.intel.com/mutate",
            CPU_MANAGER,
            SMT,
            "numa-memory.corepin.io/pod",
            "irq-policy.corepin.io/pod",
            "irq-load-balancing.crio.io",
            "shared-cpus.corepin.io/pod",
            "cpu-c-states.crio.io/main",
            "sidecar-limits.corepin.io/pod",
            "kubernetes.io/limit-ranger",
            GUARDED,
            "own",
        ]
    ),
    st.sampled_from(
        ["true", "exclusive", "isolate", "false", "", "cpu request for container main", "devices", "disable"]
    ),
    max_size=4,
)
body = st.fixed_dictionaries(
    {"containers": st.lists(one_container, min_size=1, max_size=8)},
    optional={
        "initContainers": st.none() | st.lists(one_container, max_size=3),
        "volumes": st.none() | st.lists(volume, max_size=3, unique_by=lambda entry: entry["name"]),
        "tolerations": st.none() | st.lists(toleration, max_size=3),
        "serviceAccountName": st.sampled_from([None, "", "default", "own"]),
        "automountServiceAccountToken": st.sampled_from([None, False, True]),
        "nodeSelector": st.none() | st.just({"cpumanager": "true"}),
        "runtimeClassName": st.sampled_from([None, "runc", "kata-qemu"]),
    },
)
generated = st.fixed_dictionaries(
    {"apiVersion": st.just("v1"), "kind": st.just("Pod"), "spec": body},
    optional={
        "metadata": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "annotations": st.none() | annotation,
                "labels": st.sampled_from([None, {}, {"app": "x"}, {"app": "x", **LAUNCHER}]),
            },
        )
    },
)
BEYOND = load_mutations(
    b"mutations: {perPod: {metadata: {labels: {a: b}}, spec: {priority: 5, serviceAccount: sa}},"
    b" perContainer: {tty: true, env: [{name: A, value: z}]}}"
)
