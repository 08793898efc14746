"""Additions of a mutations file, prepared as JSON Patch operations. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pinning.contract import CMK_NUM_CORES
from pinning.errors import Cause
from webhook.config.mutations import Mutations
from webhook.rules.patch import Wanted, wanted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pinning.pods.resources import Member
    from webhook.config.mutations import Fragment

PREPARED_KEPT: Final = 256  # cached operation lists, by container and counts; each takes about 2 kB


class Counted(NamedTuple):
    """An extended resource and the amount that a container gets for its claim."""

    name: str
    number: int

    @property
    def fragment(self) -> Fragment:
        """The addition to the container: requests and limits, or CMK's environment variable."""
        number = str(self.number)
        if self.name == CMK_NUM_CORES:
            return {"env": [{"name": self.name, "value": number}]}
        return {"resources": {"requests": {self.name: number}, "limits": {self.name: number}}}


class Injection:
    """The additions of one mutations file, prepared once because they are the same for many pods."""

    def __init__(self, mutations: Mutations) -> None:
        self.mutations = mutations
        self.pod_wanted = wanted("", mutations.per_pod)
        self._pod_wanted_beside = lru_cache(maxsize=PREPARED_KEPT)(self._prepare_pod)
        self.container_wanted = lru_cache(maxsize=PREPARED_KEPT)(self._container_wanted)
        self.mounted = {name: _mounted(name, path) for name, path in mutations.host_paths.items()}

    def pod_wanted_beside(self, more: Fragment, needless: frozenset[str]) -> tuple[Wanted, ...]:
        """Return the additions to a pod, joined with `more`, without the volumes `needless`.

        The result is cached and reused for pods with the same arguments.
        """
        return self._pod_wanted_beside(msgspec.json.encode(more), needless)

    def _prepare_pod(self, more: bytes, needless: frozenset[str]) -> tuple[Wanted, ...]:
        return wanted("", joined(self.mutations.per_pod_without(needless), msgspec.json.decode(more)))

    def needless(self, members: Collection[Member]) -> frozenset[str]:
        """Return the volumes of host directories at whose paths every container already mounts another volume."""
        left: Mapping[str, frozenset[str]] = self.mutations.mount_paths
        if not members:
            return frozenset()
        for member in members:
            if not left:  # in most pods no container mounts anything there
                break
            there = {mount.get("mountPath") for mount in member.container.get("volumeMounts") or ()}
            left = {name: paths for name, paths in left.items() if paths <= there}
        return frozenset(left)

    def container_fragment(self, counted: tuple[Counted, ...]) -> Fragment:
        """Return the additions to a container, with its requests and limits of extended resources."""
        added = self.mutations.per_container
        return joined(added, *(number.fragment for number in counted)) if counted else added

    def _container_wanted(self, pointer: str, counted: tuple[Counted, ...]) -> tuple[Wanted, ...]:
        """Return the additions to the container at a JSON pointer."""
        return wanted(pointer, self.container_fragment(counted))


def _mounted(volume: str, path: str) -> Cause:
    """Return the warning about a volume that is added to a pod."""
    return Cause("spec.volumes", f"host directory {path} is mounted read-only into the pod (volume {volume})")


def joined(*fragments: Fragment) -> Fragment:
    """Return the fragments merged into one; lists are concatenated."""
    whole: Fragment = {}
    for fragment in fragments:
        for key, value in fragment.items():
            present = whole.get(key)
            if isinstance(present, dict) and isinstance(value, dict):
                whole[key] = joined(present, value)
            elif isinstance(present, list) and isinstance(value, list):
                whole[key] = [*present, *value]
            else:
                whole[key] = value
    return whole


def merged(*added: Mapping[str, Fragment]) -> dict[str, Fragment]:
    """Return maps of additions by JSON pointer merged into one."""
    whole: dict[str, Fragment] = {}
    for fragments in added:
        for pointer, fragment in fragments.items():
            whole[pointer] = joined(whole[pointer], fragment) if pointer in whole else fragment
    return whole


NOTHING: Final = Injection(Mutations({}, {}))
