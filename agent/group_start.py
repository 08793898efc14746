"""Choose the agent's configuration at start: the file of the CPU group in the node's label.

While that file is missing the agent waits, changes no container, and reports the missing file.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from apiserver.errors import APIError
from apiserver.pages import decode_any
from pinning.contract import CPU_GROUP_LABEL
from pinning.errors import BadJSON
from pinning.json_text import parse_json
from pinning.planning.cpu_groups import Waiting, choose_group, groups_among, key_of
from pinning.planning.node_config import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from apiserver.client import Api
    from pinning.planning.node_config import NodeConfig

MEMORY: Final = "cpu-group"  # file in the state directory, with the group of the last start
ASK_SECONDS: Final = 5.0  # longest wait for an answer of the API server at start
LOOK_SECONDS: Final = 5.0  # between two checks of the files
LOOKS: Final = 12  # checks of the files between two requests to the API server
SILENT_LOOKS: Final = 3  # checks between two requests while the API server does not answer

logger = logging.getLogger(__name__)


class _Metadata(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata


_node = msgspec.json.Decoder(_Node)


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """The configuration files: the default one, and those of groups in the same folder."""

    default: Path
    read: Callable[[Path], NodeConfig]
    is_named: bool = False  # named by a flag, so that a missing one is an error

    def groups(self) -> frozenset[str]:
        """Return the groups that have a file; the files are not read."""
        try:
            return groups_among((path.name for path in self.default.parent.iterdir()), self.default.name)
        except OSError:
            return frozenset()

    def load(self, group: str) -> NodeConfig:
        """Return the configuration in a group's file; the defaults if the default file is missing."""
        file = self.default.with_name(key_of(group, self.default.name))
        return self.read(file) if group or self.is_named or file.exists() else DEFAULT


class GroupMemory:
    """The stored group of the last start, for starts without API server, and for the guard."""

    def __init__(self, state_dir: Path, node: str | None = None) -> None:
        self._path = state_dir / MEMORY
        self._node = node

    def recall(self) -> str | None:
        """Return the stored group; None if none was stored, or it is of a node with another name."""
        try:
            found = parse_json(self._path.read_bytes())
        except (OSError, BadJSON):
            return None
        if not isinstance(found, dict) or self._node not in (None, found.get("node")):
            return None
        group = found.get("group")
        return group if isinstance(group, str) else None

    def keep(self, group: str) -> None:
        """Store a group."""
        if self.recall() == group:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps({"node": self._node, "group": group}), encoding="utf-8")
        beside.replace(self._path)

    def forget(self) -> None:
        """Delete the stored group (uninstall)."""
        self._path.unlink(missing_ok=True)


class GroupStart:
    """Chooses the group of this node; waits if its file is missing."""

    def __init__(
        self, files: ConfigFiles, memory: GroupMemory, ask: Callable[[], Awaitable[str | None]]
    ) -> None:
        self._files = files
        self._memory = memory
        self._ask = ask
        self._labelled: str | None = None
        self.waiting: Waiting | None = None

    async def choose(self, *, is_fresh: bool = True) -> str | Waiting:
        """Return and store this node's group, or why it must wait; with `is_fresh` the label is read again."""
        if is_fresh:
            self._labelled = await self._ask()
        labelled, default = self._labelled, self._files.default.name
        chosen = choose_group(labelled, self._memory.recall(), self._files.groups(), default)
        if isinstance(chosen, str) and labelled is not None:
            self._memory.keep(chosen)
        return chosen

    async def wait(
        self,
        report: Callable[[Waiting], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> str:
        """Return the group once it has a file; after each request to the API server `report` gets why it waits."""
        looks, is_due = 0, True
        while isinstance(chosen := await self.choose(is_fresh=is_due), Waiting):
            if chosen != self.waiting:
                facts = {"reason": chosen.message}
                logger.error("waiting for the configuration of this node", extra={"facts": facts})
            self.waiting = chosen
            if is_due:
                await report(chosen)
            await sleep(LOOK_SECONDS)
            looks += 1
            is_due = looks % (SILENT_LOOKS if self._labelled is None else LOOKS) == 0
        self.waiting = None
        return chosen


async def ask_label(api: Api, path: str) -> str | None:
    """Return the label of the Node at `path`, empty if absent; None if the API server does not answer."""
    try:
        async with asyncio.timeout(ASK_SECONDS):
            node = await decode_any(_node, await api.get(path))
    except (APIError, TimeoutError) as error:
        facts = {"reason": str(error) or f"no answer in {ASK_SECONDS:.0f} s"}
        logger.warning("the group of this node is not known", extra={"facts": facts})
        return None
    return (node.metadata.labels or {}).get(CPU_GROUP_LABEL, "")
