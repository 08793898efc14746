"""Configuration of each node: the keys of the agents' ConfigMap, and the CPU group of each node. Pure.

Numbers of cores for all hosts are written to `config.yaml`; later numbers for some hosts are written to a group's key.
Values without a flag are kept as installed, including manual changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from corepin.errors import CommandFailed
from kubeyaml.reader import BadYAML, read_yaml
from kubeyaml.writer import write_yaml
from pinning.planning.cpu_groups import KEY, NO_GROUP, groups_among, key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Config = dict[str, Any]
CONFIG_MAP: Final = "ConfigMap corepin-agent"
LARGEST: Final = 2**20  # bytes of all values together, by the API server's limit for a ConfigMap
CMK_POOLS: Final[Config] = {
    "exclusive_cores": 4,
    "shared_cores": 1,
    "exclusive_mode": "packed",
    "shared_mode": "packed",
}


@dataclass(frozen=True, slots=True)
class Numbers:
    """Flags for the numbers of a node's cores; None if not given."""

    exclusive_cores: int | None = None
    shared_cores: int | None = None
    exclusive_mode: str | None = None
    shared_mode: str | None = None
    non_isolcpus: str | None = None  # list of CPUs for the pool `exclusive-non-isolcpus`; empty: none
    reserved: str | None = None  # list of the reserved CPUs

    @property
    def is_given(self) -> bool:
        """Return whether at least one of these flags is given."""
        return self != Numbers()

    def over(self, base: Config) -> Config:
        """Return a configuration with these numbers; raise CommandFailed if no core can be exclusive."""
        if not self.is_given:
            return base
        pools = base.get("pools")
        pools = dict(pools) if isinstance(pools, dict) else dict(CMK_POOLS)
        named = {
            "exclusive_cores": self.exclusive_cores,
            "shared_cores": self.shared_cores,
            "exclusive_mode": self.exclusive_mode,
            "shared_mode": self.shared_mode,
            "exclusive_non_isolcpus": self.non_isolcpus,
        }
        pools |= {key: value for key, value in named.items() if value is not None}
        if not pools.get("exclusive_non_isolcpus"):
            pools.pop("exclusive_non_isolcpus", None)
            if not pools.get("exclusive_cores"):
                problem = "--num-exclusive-cores: 0 leaves no core that could be exclusive"
                raise CommandFailed(f"{problem}: write 1 or more, or list cores with --excl-non-isolcpus")
        reserved = {} if self.reserved is None else {"reserved": self.reserved}
        return {**base, **reserved, "pools": pools}


@dataclass(frozen=True, slots=True)
class Planned:
    """The content of the agents' ConfigMap to install, and the group of each node."""

    keys: Mapping[str, str]  # value of each key of the ConfigMap
    groups: Mapping[str, str] = field(default_factory=dict)  # group of each chosen node; empty: no group


@dataclass(frozen=True, slots=True)
class Wanted:
    """The numbers of cores that a command sets, and the group for its nodes."""

    numbers: Numbers = Numbers()
    group: str = ""  # name of the group for the chosen nodes; empty: corepin chooses one
    is_for_all: bool = False


def plan_numbers(
    wanted: Wanted, installed: Mapping[str, str] | None, shipped: str, nodes: Mapping[str, str]
) -> Planned:
    """Return the ConfigMap's keys and the groups of the chosen nodes; `nodes` has the present group of each by name.

    `installed` are the cluster's keys, None before the first installation; `shipped` is the overlay's
    configuration. Keys of groups without a chosen node are not read.
    """
    keys = dict(installed) if installed else {KEY: shipped}
    keys.setdefault(KEY, shipped)
    if wanted.group:
        _put(keys, key_of(wanted.group), wanted.numbers.over(_base(keys, wanted.group)))
        groups = dict.fromkeys(nodes, wanted.group)
    elif wanted.numbers.is_given and (wanted.is_for_all or not installed):
        _put(keys, KEY, wanted.numbers.over(read_key(keys, KEY)))
        groups = dict(nodes)
    elif wanted.numbers.is_given:
        groups = {node: _group_for(keys, group, wanted.numbers) for node, group in nodes.items()}
    else:
        groups = dict(nodes)
    if keys != installed:
        _check_size(keys)
    return Planned(keys, groups)


def read_key(keys: Mapping[str, str], key: str) -> Config:
    """Return a configuration of the ConfigMap; raise CommandFailed for an invalid one."""
    try:
        documents = [content for _, content in read_yaml(keys[key])]
    except BadYAML as problem:
        raise CommandFailed(
            f"{CONFIG_MAP}: {key}: {problem}: correct it, or name another --cpu-group"
        ) from problem
    content = documents[0] if documents else {}
    if len(documents) > 1 or not isinstance(content, dict | None):
        raise CommandFailed(f"{CONFIG_MAP}: {key}: this is not a configuration of an agent: correct it")
    return content or {}


def _base(keys: Mapping[str, str], group: str) -> Config:
    """Return the configuration to change for a group: its present one, or that of nodes without a group."""
    return read_key(keys, key_of(group) if key_of(group) in keys else KEY)


def _put(keys: dict[str, str], key: str, config: Config) -> None:
    """Set a key to a configuration, unless its present text already has this meaning."""
    if key not in keys or read_key(keys, key) != config:
        keys[key] = write_yaml([config])


def _group_for(keys: dict[str, str], group: str, numbers: Numbers) -> str:
    """Return the group for nodes of `group` with changed numbers, and set its key."""
    before = _base(keys, group)
    config = numbers.over(before)
    if config == before and key_of(group) in keys:
        return group
    if config == read_key(keys, KEY):
        return NO_GROUP
    pools = config["pools"]
    name = f"exclusive-{pools.get('exclusive_cores', 0)}-shared-{pools.get('shared_cores', 0)}"
    if not _is_free(keys, name, config):
        digest = sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()
        name = f"{name}-{digest[:8]}"
    _put(keys, key_of(name), config)
    return name


def _is_free(keys: Mapping[str, str], name: str, config: Config) -> bool:
    """Return whether a group of this name has no key, or a key with the same configuration."""
    if key_of(name) not in keys:
        return True
    try:
        return read_key(keys, key_of(name)) == config
    except CommandFailed:
        return False


def _check_size(keys: Mapping[str, str]) -> None:
    size = sum(len(text.encode()) for text in keys.values())
    if size > LARGEST:
        problem = f"{CONFIG_MAP}: {size} bytes with {len(groups_among(keys))} groups are more than {LARGEST}"
        raise CommandFailed(f"{problem}: remove the keys of groups that no node is in")
