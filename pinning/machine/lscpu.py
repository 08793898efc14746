"""Parser for lscpu's JSON output of all util-linux versions since 2.34: strings or numbers, yes/no or booleans.

An offline CPU has no core ("-" or null) and its row only says that it is offline. Up to 2.41 the dash is printed
without quotes, which is not JSON (https://github.com/util-linux/util-linux/issues/3430).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pinning.errors import BadJSON
from pinning.json_text import parse_json
from pinning.machine.cpuset import MAX_CPU, CPUSet
from pinning.machine.topology import BadTopology, CPUFacts, assemble

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from pinning.machine.topology import Topology

COMMAND: Final = "LC_ALL=C lscpu --all --json --extended=CPU,NODE,SOCKET,CORE,CACHE,ONLINE"
# Heading of the column of cache ids, for example "l1d:l1i:l2:l3", depending on the machine.
_CACHE_COLUMN = re.compile(r"l[0-9]+[di]?(?:[^a-z0-9]l[0-9]+[di]?)*")
_NUMBER = re.compile(r"[0-9]{1,10}")  # firmware uses any 32-bit number as id of a socket
_BARE_DASH = re.compile(r"(:\s*)-(?=\s*[,}])")
_ABSENT: Final = (None, "", "-")
_ONLINE: Final = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
_LAST_LEVEL: Final = 3  # an L2 belongs to its core; without an L3 the package is the cache domain

Row = dict[str, Any]


def read_lscpu(text: str) -> Topology:
    """Return the topology that `COMMAND` printed, with every CPU that has a core; raise BadTopology otherwise."""
    facts: dict[int, CPUFacts] = {}
    online = []
    for row in _rows(text):
        cpu = _number(row, "cpu")
        if cpu is None or cpu > MAX_CPU:
            raise _bad("CPU", row.get("cpu"), f"a number from 0 to {MAX_CPU}")
        if cpu in facts:
            raise BadTopology(f"lscpu: column CPU: {cpu} stands in two rows: remove one")
        if _is_online(row, cpu):
            online.append(cpu)
        fact = _facts(row, cpu)
        if fact:
            facts[cpu] = fact
    return assemble(facts.values(), CPUSet(online))


def _rows(text: str) -> list[Row]:
    try:
        document = parse_json(_BARE_DASH.sub(r"\1null", text))
    except BadJSON as error:
        raise BadTopology(f"lscpu: {error}: write the file with `{COMMAND}`") from error
    rows = document.get("cpus") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadTopology(f"lscpu: no list of rows under 'cpus': write the file with `{COMMAND}`")
    return [{str(name).lower(): value for name, value in row.items()} for row in rows]


def _facts(row: Row, cpu: int) -> CPUFacts | None:
    core = _number(row, "core")
    if core is None:
        return None
    package = _number(row, "socket") or 0
    caches = _caches(row, package)
    return CPUFacts(
        cpu,
        core=(package, core),  # `lscpu --physical` prints raw ids, which repeat across sockets
        package=package,
        numa_node=_number(row, "node") or 0,
        uncore_cache=caches.get("last"),
        l2=caches.get("l2"),
    )


def _is_online(row: Row, cpu: int) -> bool:
    has_core = _number(row, "core") is not None
    value = row.get("online")
    if value in _ABSENT:
        return has_core
    online = _ONLINE.get(str(value).lower())
    if online is None:
        raise _bad("ONLINE", value, "yes, no, true or false (lscpu writes the words of its user's language)")
    if online and not has_core:
        raise BadTopology(
            f"lscpu: column CORE: CPU {cpu} is online without a core: name it, or run `{COMMAND}`"
        )
    return online


def _number(row: Row, column: str) -> int | None:
    value = row.get(column)
    if value in _ABSENT:
        return None
    text = str(value)
    if isinstance(value, bool) or not _NUMBER.fullmatch(text):
        raise _bad(column.upper(), value, "a number, or null for an offline CPU")
    return int(text)


def _caches(row: Row, package: int) -> Mapping[str, Hashable]:
    """Return the ids of the L2 and of the last-level cache.

    The ids of a CPU skip caches that it does not have: "64:64:8" under l1d:l1i:l2:l3 lacks an L3, and "1:0" an L1
    (both were seen on one Core Ultra 9 185H). The two L1 caches of a CPU have the same id, which tells these cases
    apart.
    """
    column = next((name for name in row if _CACHE_COLUMN.fullmatch(name)), None)
    if column is None or row[column] in _ABSENT:
        return {}
    levels, numbers = re.split("[^a-z0-9]", column), str(row[column]).split(":")
    if len(set(numbers[:2])) > 1:
        levels = levels[-len(numbers) :]
    caches: dict[str, Hashable] = {}
    for level, number in zip(levels, numbers, strict=False):
        if not _NUMBER.fullmatch(number):
            raise _bad(column.upper(), row[column], "numbers with colons between them, such as 0:0:0:0")
        caches[level] = (package, int(number))
        if int(level[1:].rstrip("di")) >= _LAST_LEVEL:
            caches["last"] = (package, level, int(number))
    return caches


def _bad(column: str, value: object, wanted: str) -> BadTopology:
    return BadTopology(
        f"lscpu: column {column}: {repr(value)[:60]} is not {wanted}: correct it, or run `{COMMAND}`"
    )
