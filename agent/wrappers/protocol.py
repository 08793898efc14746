r"""Protocol between the shim in a container (`cmk`) and the agent, version 1. Pure.

The shim connects to the stream socket `cmk.sock` in the install directory, sends one request, and reads one answer up
to its end; then the agent closes. The process that connects is the one that gets the CPUs: the shim asks before it
executes the command, from its own process. A request does not identify its sender: the kernel does.

A request is lines of UTF-8 that end in `\n`, the last of them empty; at most REQUEST_LIMIT bytes, sent within
SEND_SECONDS. The first line is `cmk 1 VERB`; each other one is `KEY=VALUE` with a key of that verb, once:

    isolate pool=NAME --pool; required
                 cores=TEXT       CMK_NUM_CORES as it is set; without it 1
                 socket=TEXT      --socket-id as it is written; without it, or -1, any
                 affinity=no      --no-affinity
    describe, node-report, reconcile      none

An answer is `ok LENGTH` or `error LENGTH` and `\n`, and then LENGTH bytes of UTF-8. A shorter answer is invalid:
the agent exited while it wrote, and the shim repeats the request; the same process gets the same cores. After
`error` they are one line to print, and the shim exits with 1. After `ok` they are

    isolate      lines `NAME=VALUE` for the environment of the command, and lines `warning=TEXT` to print first;
                 the process is pinned when it reads them
    the others   text that the shim prints unchanged

The agent answers within ANSWER_SECONDS; a client may give up after that.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError
from pinning.contract import EXCLUSIVE_CORES, EXCLUSIVE_NON_ISOLCPUS_CORES

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = "1"
REQUEST_LIMIT: Final = 1024  # bytes: the longest valid request has a hundred
SEND_SECONDS: Final = 2.0  # time from connecting to the end of the request
ANSWER_SECONDS: Final = 25.0
END: Final = b"\n\n"
_QUOTED: Final = 60  # characters quoted of an invalid text
_LINE: Final = re.compile(r"([a-z]+)=([^\x00-\x1f\x7f]*)")
ANY_SOCKET: Final = "-1"
_NUMBER: Final = re.compile(r"[0-9]{1,6}")  # int() also accepts "1_0" and digits of other scripts
_COUNT: Final = re.compile(r"\+?[0-9]{1,6}")


class Denied(AgentError):
    """A refused request; the message has expectation, finding and remedy."""


class Crowded(AgentError):
    """The node's connection limit is reached; the connection closes without an answer, so the shim retries."""


class Verb(StrEnum):
    """The verbs of requests."""

    ISOLATE = "isolate"
    DESCRIBE = "describe"
    NODE_REPORT = "node-report"
    RECONCILE = "reconcile"


_KEYS: Final = frozenset({"pool", "cores", "socket", "affinity"})  # keys of isolate


class Request(NamedTuple):
    """A request with its unparsed values, by key."""

    verb: Verb
    values: Mapping[str, str]


def read_request(content: bytes) -> Request:
    """Parse a request up to its empty line; raise Denied for anything else."""
    try:
        head, *lines = content.removesuffix(END).decode().split("\n")
    except UnicodeDecodeError as error:
        raise Denied("the request is not UTF-8: use the cmk of this install directory") from error
    verb = _verb(head)
    values = dict(map(_value, lines))
    allowed = _KEYS if verb is Verb.ISOLATE else frozenset()
    if len(values) != len(lines) or not values.keys() <= allowed:
        raise Denied(
            f"{verb} takes {', '.join(sorted(allowed)) or 'nothing'}, each once, not {_quoted(lines)}"
        )
    return Request(verb, values)


def _verb(head: str) -> Verb:
    words = head.split(" ")
    if words[:2] != ["cmk", VERSION]:
        problem = f"this agent speaks version {VERSION} of the protocol of cmk, not {_quoted(words[:2])}"
        raise Denied(f"{problem}: use the cmk of this install directory")
    try:
        return Verb(" ".join(words[2:]))
    except ValueError as error:
        problem = f"{_quoted(words[2:])} is not a request that the agent serves"
        raise Denied(f"{problem}: ask for {', '.join(Verb)}") from error


def _value(line: str) -> tuple[str, str]:
    found = _LINE.fullmatch(line)
    if not found:
        raise Denied(f"the line {_quoted([line])} of the request is not KEY=VALUE")
    return found[1], found[2]


def _quoted(words: list[str]) -> str:
    return repr(" ".join(words)[:_QUOTED])


class Pool(StrEnum):
    """CMK's pools."""

    EXCLUSIVE = "exclusive"
    EXCLUSIVE_NON_ISOLCPUS = "exclusive-non-isolcpus"
    SHARED = "shared"
    INFRA = "infra"

    @property
    def resource(self) -> str:
        """The extended resource that a container must request to get cores of the pool; empty for a shared pool."""
        return _RESOURCES.get(self, "")


_RESOURCES: Final = {
    Pool.EXCLUSIVE: EXCLUSIVE_CORES,
    Pool.EXCLUSIVE_NON_ISOLCPUS: EXCLUSIVE_NON_ISOLCPUS_CORES,
}


class Want(NamedTuple):
    """A parsed isolate request."""

    pool: Pool
    cores: int = 1  # number of cores, from an exclusive pool
    socket: int | None = None  # None: any socket; for the pool `infra` always any, as in CMK
    is_pinned: bool = True  # False: the process gets its CPUs in an environment variable and pins itself


def read_want(values: Mapping[str, str]) -> Want:
    """Parse the values of a request; raise Denied."""
    name = values.get("pool", "")
    try:
        pool = Pool(name)
    except ValueError as error:
        problem = f"Requested pool {name[:_QUOTED]} does not exist"
        raise Denied(f"{problem}: choose {', '.join(Pool)}") from error
    affinity = values.get("affinity", "yes")
    if affinity not in {"yes", "no"}:
        raise Denied(f"affinity is yes or no, not {affinity[:_QUOTED]!r}")
    if pool is Pool.INFRA:  # CMK ignores --socket-id for infra
        return Want(pool, is_pinned=affinity == "yes")
    socket = _socket(values.get("socket", ANY_SOCKET))
    if pool is Pool.SHARED:
        return Want(pool, 1, socket, affinity == "yes")
    return Want(pool, _cores(values.get("cores", "1")), socket, affinity == "yes")


def _cores(text: str) -> int:
    count = int(text) if _COUNT.fullmatch(text.strip()) else 0
    if count < 1:
        raise Denied(
            f"Requested numbers of cores must be positive integer: CMK_NUM_CORES is {text[:_QUOTED]!r}"
        )
    return count


def _socket(text: str) -> int | None:
    if text == ANY_SOCKET:
        return None
    if not _NUMBER.fullmatch(text):
        raise Denied(
            f"Requested socket must be a number, or {ANY_SOCKET} for any: --socket-id is {text[:_QUOTED]!r}"
        )
    return int(text)


def accepted(body: str) -> bytes:
    """Return the encoded answer `ok` with a body."""
    return _framed("ok", body)


def denied(reason: Denied) -> bytes:
    """Return the encoded answer `error` with its reason."""
    return _framed("error", " ".join(str(reason).split()))


def _framed(word: str, body: str) -> bytes:
    content = body.encode("utf-8", "replace")
    return b"%s %d\n%s" % (word.encode(), len(content), content)


def environment(values: Mapping[str, str], warnings: tuple[str, ...] = ()) -> str:
    """Return the body of an answer to `isolate`."""
    lines = [f"warning={' '.join(warning.split())}" for warning in warnings]
    lines += [f"{name}={value}" for name, value in values.items()]
    return "".join(f"{line}\n" for line in lines)
