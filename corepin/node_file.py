"""Reader of a node configuration file, shared by the agent and `corepin plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corepin.documents import read_values
from corepin.errors import CommandFailed

if TYPE_CHECKING:
    from pinning.planning.node_config import NodeConfig


def read_node_file(source: str) -> NodeConfig:
    """Return the configuration of a file, defaults for an empty one; raise CommandFailed with file, key and remedy."""
    from pinning.errors import BadContract
    from pinning.planning.node_config import read_node_config

    documents = read_values(source)
    if len(documents) > 1:
        line, _ = documents[1]
        raise CommandFailed(f"{source}:{line}: the configuration is one document: remove the others")
    try:
        return read_node_config(documents[0][1] if documents else {})
    except BadContract as problem:
        raise CommandFailed(f"{source}: {problem}") from problem
