"""What a wrapper wants, read from a request; the texts that CMK had are CMK's. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.wrappers.errors import Denied
from pinning.contract import EXCLUSIVE_CORES, EXCLUSIVE_NON_ISOLCPUS_CORES

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY_SOCKET: Final = "-1"
_NUMBER: Final = re.compile(r"[0-9]{1,6}")  # int() takes "1_0" and digits of all scripts
_COUNT: Final = re.compile(r"\+?[0-9]{1,6}")
_SHOWN: Final = 60  # characters of what a user wrote


class Pool(StrEnum):
    """CMK's pools."""

    EXCLUSIVE = "exclusive"
    EXCLUSIVE_NON_ISOLCPUS = "exclusive-non-isolcpus"
    SHARED = "shared"
    INFRA = "infra"

    @property
    def resource(self) -> str:
        """The extended resource that entitles to its cores; empty where none is needed."""
        return _RESOURCES.get(self, "")


_RESOURCES: Final = {
    Pool.EXCLUSIVE: EXCLUSIVE_CORES,
    Pool.EXCLUSIVE_NON_ISOLCPUS: EXCLUSIVE_NON_ISOLCPUS_CORES,
}


class Want(NamedTuple):
    """What one process asks for."""

    pool: Pool
    cores: int = 1  # of an exclusive pool
    socket: int | None = None  # None: any; of `infra` always any, as in CMK
    is_pinned: bool = True  # false: it gets its CPUs told and moves by itself


def read_want(values: Mapping[str, str]) -> Want:
    """Read the values of a request; raise Denied."""
    name = values.get("pool", "")
    try:
        pool = Pool(name)
    except ValueError as error:
        problem = f"Requested pool {name[:_SHOWN]} does not exist"
        raise Denied(f"{problem}: choose {', '.join(Pool)}") from error
    affinity = values.get("affinity", "yes")
    if affinity not in {"yes", "no"}:
        raise Denied(f"affinity is yes or no, not {affinity[:_SHOWN]!r}")
    if pool is Pool.INFRA:  # whatever --socket-id says, as in CMK
        return Want(pool, is_pinned=affinity == "yes")
    socket = _socket(values.get("socket", ANY_SOCKET))
    if pool is Pool.SHARED:
        return Want(pool, 1, socket, affinity == "yes")
    return Want(pool, _cores(values.get("cores", "1")), socket, affinity == "yes")


def _cores(text: str) -> int:
    count = int(text) if _COUNT.fullmatch(text.strip()) else 0
    if count < 1:
        raise Denied(
            f"Requested numbers of cores must be positive integer: CMK_NUM_CORES is {text[:_SHOWN]!r}"
        )
    return count


def _socket(text: str) -> int | None:
    if text == ANY_SOCKET:
        return None
    if not _NUMBER.fullmatch(text):
        raise Denied(
            f"Requested socket must be a number, or {ANY_SOCKET} for any: --socket-id is {text[:_SHOWN]!r}"
        )
    return int(text)
