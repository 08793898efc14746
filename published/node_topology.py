"""The annotation `status.corepin.io/topology` of a node: `Topology.to_dict`, with a version as first member."""

from __future__ import annotations

from typing import Final

import msgspec

from pinning.machine.topology import Topology
from published.codec import DAMAGE, NO_VERSION, AnotherVersion, check_version

NAME: Final = "the agent's annotation of the machine"
VERSION: Final = 1


def encode_topology(topology: Topology) -> bytes:
    """Return the annotation's text for the topology of a machine."""
    return msgspec.json.encode({"version": VERSION, **topology.to_dict()})


def decode_topology(text: str | bytes) -> Topology:
    """Return the topology; raise AnotherVersion for another version or invalid JSON, BadTopology if inconsistent."""
    try:
        saved = msgspec.json.decode(text)
    except DAMAGE as error:
        raise AnotherVersion(NAME, error) from error
    if isinstance(saved, dict):
        check_version(NAME, saved.get("version", NO_VERSION), VERSION)
    return Topology.from_dict(saved)
