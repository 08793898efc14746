"""The measured review: a pod of three containers that claims cores, as an API server sends it."""

from __future__ import annotations

import json
from typing import Any

BODY_BYTES = 6393  # the size at which the libraries were chosen, so that figures compare
ACCOUNT_VOLUME = "kube-api-access-x7k2p"
CORES = "cmk.intel.com/exclusive-cores"


def review() -> bytes:
    """Return the body of an AdmissionReview of exactly `BODY_BYTES`."""
    lacking = BODY_BYTES - len(_encoded(""))
    return _encoded("x" * lacking)


def _encoded(filler: str) -> bytes:
    return json.dumps(_review(filler), separators=(",", ":")).encode()


def _review(filler: str) -> dict[str, Any]:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": "packet-gateway-7c9f8d6b5-q4x2m",
        "namespace": "telecom",
        "operation": "CREATE",
        "userInfo": {
            "username": "system:serviceaccount:kube-system:replicaset-controller",
            "uid": "9f3c5f0e-4f0a-4c47-8f7e-0a3b9d7a6c11",
            "groups": [
                "system:serviceaccounts",
                "system:serviceaccounts:kube-system",
                "system:authenticated",
            ],
        },
        "object": _pod(filler),
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _pod(filler: str) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": "packet-gateway-7c9f8d6b5-q4x2m",
            "generateName": "packet-gateway-7c9f8d6b5-",
            "namespace": "telecom",
            "uid": "1d3f5a7c-2b4d-4e6f-8a9b-0c1d2e3f4a5b",
            "creationTimestamp": "2026-11-20T18:49:00Z",
            "labels": {"app": "packet-gateway", "pod-template-hash": "7c9f8d6b5", "tier": "data-plane"},
            "annotations": {"prometheus.io/scrape": "true", "example.com/purpose": filler},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "packet-gateway-7c9f8d6b5",
                    "uid": "5e6f7a8b-9c0d-4e1f-a2b3-c4d5e6f7a8b9",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": _spec(),
        "status": {},
    }


def _spec() -> dict[str, Any]:
    return {
        "volumes": [{"name": "scratch", "emptyDir": {}}, _account_volume()],
        "containers": [
            _container("forwarder", {"cpu": "2", "memory": "2Gi", CORES: "2"}),
            _container("control", {"cpu": "500m", "memory": "256Mi"}),
            _container("metrics", {"cpu": "100m", "memory": "64Mi"}),
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{taint}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for taint in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _account_volume() -> dict[str, Any]:
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [
                    {
                        "path": "namespace",
                        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                    }
                ]
            }
        },
    ]
    return {"name": ACCOUNT_VOLUME, "projected": {"sources": sources, "defaultMode": 420}}


def _container(name: str, amounts: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "image": f"registry.example.com/telecom/{name}:4.7.1",
        "args": ["--listen=:8080", "--log-level=info"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [
            {"name": "REGION", "value": "eu-central-1"},
            {"name": "LOG_FORMAT", "value": "json"},
            {
                "name": "NODE_NAME",
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}},
            },
        ],
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [
            {"name": "scratch", "mountPath": "/var/run/scratch"},
            {
                "name": ACCOUNT_VOLUME,
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "livenessProbe": _probe("/healthz"),
        "readinessProbe": _probe("/readyz"),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
        },
    }


def _probe(path: str) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
