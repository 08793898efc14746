"""Container requests that the API server fills in, for documents that no API server has read. Pure.

A limit without a request becomes the request too, before webhooks review a pod and again after each webhook's changes
(`SetDefaults_Pod` of Kubernetes 1.37.1, for containers and init containers). The API server leaves pod templates as they
are, and fills in the requests of their pods. It fills in pod-level amounts after admission, from those of the
containers; the rules compute them (`pinning/pods/qos.py`).
"""

from __future__ import annotations

from typing import Any, Final

from pinning.pods.resources import is_quantity

Document = dict[str, Any]  # not decoded, so that any value may have the wrong type

_KINDS: Final = ("initContainers", "containers")
_AMOUNTS: Final = (str, int, float)  # compared exactly, because true is an int


def with_requests(pod: Document) -> Document:
    """Return a pod whose containers also request each limit for which they state no request."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return pod
    lists = {kind: list(map(_filled, its)) for kind in _KINDS if isinstance(its := spec.get(kind), list)}
    return {**pod, "spec": {**spec, **lists}}


def without_requests(pod: Document, written: Document) -> Document:
    """Return the injected pod without the requests that `with_requests` added to the written one.

    The API server adds the same ones again, because corepin changes such a request together with its limit only.
    """
    spec, before = pod["spec"], written.get("spec") or {}
    lists = {}
    for kind in _KINDS:
        its = before.get(kind) or []
        own = len(spec.get(kind) or []) - len(its)  # the gate, which is added in front
        if its:
            pairs = zip(spec[kind][own:], its, strict=True)
            lists[kind] = [*spec[kind][:own], *(_reduced(now, as_written) for now, as_written in pairs)]
    return {**pod, "spec": {**spec, **lists}}


def _filled(container: Any) -> Any:
    missing = _missing(container)
    if not missing:
        return container
    resources = container["resources"]
    requests = {**(resources.get("requests") or {}), **missing}
    return {**container, "resources": {**resources, "requests": requests}}


def _reduced(container: Document, written: Document) -> Document:
    missing = _missing(written)
    if not missing:
        return container
    resources = container["resources"]
    requests = {name: amount for name, amount in resources["requests"].items() if name not in missing}
    if requests or "requests" in written["resources"]:
        return {**container, "resources": {**resources, "requests": requests}}
    return {**container, "resources": {key: it for key, it in resources.items() if key != "requests"}}


def _missing(container: Any) -> dict[str, Any]:
    """Return the limits for which a container states no request.

    Values that are no amounts are left out, because errors about them name the field in which they are written.
    """
    resources = container.get("resources") if isinstance(container, dict) else None
    if not isinstance(resources, dict):
        return {}
    limits, requests = resources.get("limits"), resources.get("requests")
    if not isinstance(limits, dict) or not isinstance(requests, dict | None):
        return {}
    stated = requests or {}
    return {
        name: amount
        for name, amount in limits.items()
        if name not in stated and type(amount) in _AMOUNTS and is_quantity(amount)
    }
