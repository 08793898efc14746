"""CMK's mutations file: additions to every pod (`perPod`) and to each of its containers (`perContainer`).

The format is that of CMK's `resources/webhook/cmk-webhook-configmap.yaml`. Loading makes all mounts of host
directories read-only. It keeps the service account apart from the other additions, because the webhook sets it only in
pods that name no account.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec

from pinning.contract import (
    CMK_INJECTED,
    CMK_MUTATE,
    CMK_NUM_CORES,
    CMK_TAINT_KEY,
    CMK_TAINT_VALUE,
    CONTAINER_VARIABLE,
    FILLED_IN,
    GATE_RESTART_POLICY,
    LIMIT_RANGER,
    MIRROR_POD,
    POD_BUDGET,
)
from pinning.errors import BadContract
from pinning.pods.types import Container, Pod
from webhook.config.errors import explain
from webhook.config.settings import parse_yaml

Fragment = dict[str, Any]
Shape = TypeVar("Shape")

# Members that the partial types of new pods have. For a file with other members, the webhook decodes whole pods.
_TYPED_META: Final = frozenset({"annotations"})
_TYPED_SPEC: Final = frozenset({"tolerations", "volumes", "nodeSelector"})
_TYPED_CONTAINER: Final = frozenset({"env", "volumeMounts"})
_OWN_LISTS: Final = ("containers", "initContainers", "ephemeralContainers")


@dataclass(frozen=True)
class Mutations:
    """A validated mutations file: what the webhook adds to pods."""

    per_pod: Fragment
    per_container: Fragment
    service_account: str | None = None
    host_paths: dict[str, str] = field(default_factory=dict)  # host directory by volume name

    @cached_property
    def volumes(self) -> frozenset[str]:
        """Return the names of the volumes that the file adds to a pod."""
        return frozenset(volume["name"] for volume in self.per_pod.get("spec", {}).get("volumes", ()))

    @cached_property
    def mount_paths(self) -> dict[str, frozenset[str]]:
        """Return the mount paths of each mounted host directory, by volume name."""
        paths: dict[str, set[str]] = {}
        for mount in self.per_container.get("volumeMounts", ()):
            if mount["name"] in self.host_paths:
                paths.setdefault(mount["name"], set()).add(mount["mountPath"])
        return {name: frozenset(found) for name, found in paths.items()}

    def per_pod_without(self, volumes: frozenset[str]) -> Fragment:
        """Return the additions to a pod, leaving out these volumes."""
        if not volumes:
            return self.per_pod
        spec = dict(self.per_pod.get("spec", {}))
        kept = [volume for volume in spec.pop("volumes", ()) if volume["name"] not in volumes]
        return {**self.per_pod, "spec": {**spec, "volumes": kept} if kept else spec}

    @cached_property
    def automount(self) -> bool | None:
        """Return the file's value of `automountServiceAccountToken`."""
        stated: bool | None = self.per_pod.get("spec", {}).get("automountServiceAccountToken")
        return stated

    @cached_property
    def annotations(self) -> frozenset[str]:
        """Return the annotations of a pod that affect the answer, besides those for policies, NRI and CRI-O."""
        added = self.per_pod.get("metadata", {}).get("annotations", {})
        return frozenset({CMK_MUTATE, MIRROR_POD, LIMIT_RANGER, FILLED_IN, POD_BUDGET, *added})

    @cached_property
    def variables(self) -> frozenset[str]:
        """Return the names of a container's environment variables that affect the additions or the validation."""
        return frozenset(
            {
                CMK_NUM_CORES,
                CONTAINER_VARIABLE,
                GATE_RESTART_POLICY,
                *(variable["name"] for variable in self.per_container.get("env", ())),
            }
        )

    @cached_property
    def is_typed(self) -> bool:
        """Return whether the partial types of new pods have all members that this file adds to."""
        metadata, spec = self.per_pod.get("metadata", {}), self.per_pod.get("spec", {})
        return (
            metadata.keys() <= _TYPED_META
            and spec.keys() <= _TYPED_SPEC
            and self.per_container.keys() <= _TYPED_CONTAINER
        )


class _Mutations(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    per_pod: dict[str, Any] | None = None
    per_container: dict[str, Any] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    mutations: _Mutations


def load_mutations(document: bytes) -> Mutations:
    """Read a mutations file; raise BadContract naming what is wrong and where."""
    given = parse_yaml(document, "mutations file")
    if given is None:
        raise BadContract("mutations file: it is empty: write `mutations:` with perPod and perContainer")
    parsed = _converted(given, _File).mutations
    per_pod, per_container = parsed.per_pod or {}, parsed.per_container or {}
    _converted(per_pod, Pod, "perPod")
    _converted(per_container, Container, "perContainer")
    _refuse_misplaced(per_pod, per_container)
    return _made_safe(copy.deepcopy(per_pod), copy.deepcopy(per_container))


def _converted(parsed: object, kind: type[Shape], prefix: str = "") -> Shape:
    try:
        return msgspec.convert(parsed, kind)
    except msgspec.ValidationError as error:
        raise BadContract(f"mutations file: {explain(error, parsed, kind, prefix)}") from error


def _refuse_misplaced(per_pod: Fragment, per_container: Fragment) -> None:
    unknown = per_pod.keys() - {"metadata", "spec"}
    if unknown:
        raise BadContract(
            f"mutations file: perPod.{min(unknown)} is not part of a pod: write metadata or spec"
        )
    for name in _OWN_LISTS:
        if name in (per_pod.get("spec") or {}):
            raise BadContract(f"mutations file: perPod.spec.{name} cannot be added: use perContainer")
    for what in ("name", "image"):
        if what in per_container:
            raise BadContract(
                f"mutations file: perContainer.{what} would replace the {what} of every container: remove it"
            )
    for where, entries, keys in (
        ("perPod.spec.volumes", (per_pod.get("spec") or {}).get("volumes"), ("name",)),
        ("perContainer.env", per_container.get("env"), ("name",)),
        ("perContainer.volumeMounts", per_container.get("volumeMounts"), ("name", "mountPath")),
    ):
        for key in keys:
            _require_key(where, entries or [], key)


def _require_key(where: str, entries: list[Fragment], key: str) -> None:
    seen: set[str] = set()
    for at, entry in enumerate(entries):
        value = entry.get(key)
        if not value:
            raise BadContract(f"mutations file: {where}[{at}].{key} is missing")
        if value in seen and not (where.endswith("volumeMounts") and key == "name"):
            raise BadContract(f"mutations file: {where}[{at}].{key} {value!r} appears twice: remove one")
        seen.add(value)


def _made_safe(per_pod: Fragment, per_container: Fragment) -> Mutations:
    spec = _without_nulls(per_pod.get("spec") or {})
    alias = spec.pop("serviceAccount", None)
    service_account = spec.pop("serviceAccountName", None) or alias
    metadata = _without_nulls(per_pod.get("metadata") or {})
    metadata["annotations"] = {**(metadata.get("annotations") or {}), CMK_INJECTED: "true"}
    host_paths = {
        volume["name"]: str(volume["hostPath"].get("path", ""))
        for volume in spec.get("volumes", ())
        if volume.get("hostPath")
    }
    container = _without_nulls(per_container)
    for mount in container.get("volumeMounts", ()):
        if mount["name"] in host_paths:
            mount["readOnly"] = True  # otherwise root in a pod could replace files that other pods execute
    return Mutations({"metadata": metadata, "spec": spec}, container, service_account, host_paths)


def _without_nulls(fragment: Fragment) -> Fragment:
    return {key: value for key, value in fragment.items() if value is not None}


BUILT_IN: Final = _made_safe(
    {
        "spec": {
            "tolerations": [
                {"key": CMK_TAINT_KEY, "operator": "Equal", "value": CMK_TAINT_VALUE, "effect": "NoSchedule"}
            ],
            "volumes": [
                {"name": "cmk-install-dir", "hostPath": {"path": "/opt/bin", "type": "DirectoryOrCreate"}},
                {"name": "cmk-config-dir", "hostPath": {"path": "/etc/cmk", "type": "DirectoryOrCreate"}},
            ],
        }
    },
    {
        "volumeMounts": [
            {"name": "cmk-install-dir", "mountPath": "/opt/bin"},
            {"name": "cmk-config-dir", "mountPath": "/etc/cmk"},
        ]
    },
)
