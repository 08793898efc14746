"""Service account of a mutations file, set in pods that name none, and the API token of these pods. Pure.

The ServiceAccount plugin of the API server runs before webhooks and mounts a token volume. The kubelet requests the
token for the account of the stored pod, so a pod would otherwise get a token of the account that the webhook sets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pinning.errors import Cause
from webhook.rules.patch import Operation, add, remove

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pinning.pods.types import Pod, PodSpec, Volume, VolumeProjection
    from webhook.config.mutations import Mutations

# The plugin ServiceAccount, which runs before webhooks, writes "default" into pods that name no account.
DEFAULTS: Final = frozenset({None, "", "default"})
AUTOMOUNT: Final = "automountServiceAccountToken"
TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a directory
TOKEN_PREFIX: Final = "kube-api-access-"  # noqa: S105 - of a volume's name
# Users may choose such a name too, so the sources of the volume are compared as well.
_GENERATED: Final = re.compile(rf"{TOKEN_PREFIX}[bcdfghjklmnpqrstvwxz2456789]{{5}}")
_CA_BUNDLES: Final = frozenset({"kube-root-ca.crt", "openshift-service-ca.crt"})
CONTAINERS: Final = ("containers", "initContainers")


def sets_account(pod: Pod, mutations: Mutations) -> bool:
    """Return whether the webhook sets the account of a pod: the file names one, and the pod does not."""
    if mutations.service_account in DEFAULTS:
        return False
    spec = pod.get("spec") or {}
    name = spec.get("serviceAccountName")
    return name in DEFAULTS and (bool(name) or spec.get("serviceAccount") in DEFAULTS)


def plan_account(pod: Pod, mutations: Mutations) -> Iterator[Operation]:
    """Yield the operations that set the account, also in the alias `serviceAccount` if set, and disable its token.

    The pod or the mutations file can enable the token by `automountServiceAccountToken`.
    """
    if not sets_account(pod, mutations):
        return
    spec = pod.get("spec") or {}
    yield add("/spec/serviceAccountName", mutations.service_account)
    if spec.get("serviceAccount"):
        yield add("/spec/serviceAccount", mutations.service_account)
    if spec.get(AUTOMOUNT) is None and mutations.automount is None:
        yield add(f"/spec/{AUTOMOUNT}", value=False)


def plan_token(pod: Pod, mutations: Mutations) -> tuple[Pod, list[Operation]]:
    """Return the pod without the token volume that the webhook removes, and the operations (none: unchanged)."""
    name = lost_token(pod, mutations)
    spec: Any = pod.get("spec")
    if name is None:
        return pod, []
    bare: Any = dict(spec)
    steps: list[Operation] = []
    for kind in CONTAINERS:
        containers = []
        for at, container in enumerate(spec.get(kind) or ()):
            mounts = container.get("volumeMounts") or ()
            removals = _removals(f"/spec/{kind}/{at}/volumeMounts", mounts, name)
            steps += removals
            containers.append({**container, "volumeMounts": _others(mounts, name)} if removals else container)
        if containers:
            bare[kind] = containers
    steps += _removals("/spec/volumes", spec["volumes"], name)
    bare["volumes"] = _others(spec["volumes"], name)
    return {**pod, "spec": bare}, steps


def warn_token(pod: Pod, mutations: Mutations) -> Iterator[Cause]:
    """Warn about a pod that asks for the token of an account that it does not name."""
    if sets_account(pod, mutations) and (pod.get("spec") or {}).get(AUTOMOUNT):
        account = mutations.service_account
        yield Cause(
            f"spec.{AUTOMOUNT}",
            f"true mounts an API token of the account {account}, which the webhook sets: remove the field, "
            "or name an account of your own",
        )


def lost_token(pod: Pod, mutations: Mutations) -> str | None:
    """Return the name of the token volume that the webhook removes from a pod; None if it removes none."""
    if not sets_account(pod, mutations) or mutations.automount:
        return None
    spec = pod.get("spec") or {}
    if spec.get(AUTOMOUNT) is not None:
        return None
    volumes = [it for it in spec.get("volumes") or () if (it.get("name") or "").startswith(TOKEN_PREFIX)]
    if len(volumes) != 1 or not _is_generated(volumes[0]):
        return None  # the plugin adds at most one volume
    name = volumes[0]["name"]
    return name if _is_mounted_for_the_token_alone(spec, name) else None


def _is_generated(volume: Volume) -> bool:
    """Return whether a volume has the name and the sources that the plugin gives its volumes."""
    sources = (volume.get("projected") or {}).get("sources") or ()
    tokens = [it for it in sources if it.get("serviceAccountToken")]
    return (
        _GENERATED.fullmatch(volume["name"]) is not None and len(tokens) == 1 and all(map(_is_usual, sources))
    )


def _is_usual(source: VolumeProjection) -> bool:
    """Return whether a volume source is one of the plugin's: API token, CA bundle of the cluster, field of the pod."""
    if token := source.get("serviceAccountToken"):
        return token.get("path") == "token" and not token.get("audience")
    if bundle := source.get("configMap"):
        return bundle.get("name") in _CA_BUNDLES
    return source.get("downwardAPI") is not None


def _is_mounted_for_the_token_alone(spec: PodSpec, name: str) -> bool:
    """Return whether containers mount a volume, at most once each, and only at the path of the token.

    Otherwise the volume cannot be removed: a mount without its volume, or a path mounted twice, makes a pod invalid.
    """
    used = []
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        paths = [it.get("mountPath") for it in container.get("volumeMounts") or () if it.get("name") == name]
        if paths:
            used.append(paths)
    return bool(used) and all(paths == [TOKEN_PATH] for paths in used)


def _removals(pointer: str, entries: Sequence[Any], name: str) -> list[Operation]:
    return [remove(f"{pointer}/{at}") for at, it in enumerate(entries) if it.get("name") == name]


def _others(entries: Sequence[Any], name: str) -> list[Any]:
    return [it for it in entries if it.get("name") != name]
