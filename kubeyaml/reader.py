"""YAML reader with kubectl's semantics, based on parser events.

PyYAML's own loaders do not fit: they accept duplicate keys, convert timestamps and `1:30`, expand aliases without a
limit, and the fast one crashes the process on deep nesting. Therefore no tree of nodes is built. Why no other
library: docs/decisions/0011-our-own-yaml-reader.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPTH_LIMIT: Final = 200  # nested levels: twice those of any Kubernetes object
SIZE_LIMIT: Final = 2**25  # characters of a file with its aliases expanded; an object has at most 3 MB
NODE_SIZE: Final = 8  # least characters that a value takes, with key and indentation

_NULL: Final = re.compile(r"~|null|Null|NULL|")
_BOOL: Final = re.compile(
    r"(?P<true>yes|Yes|YES|true|True|TRUE|on|On|ON)|no|No|NO|false|False|FALSE|off|Off|OFF"
)
_INT: Final = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LONG: Final = 64  # digits; a longer number is read as text
_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = "<<"


class BadYAML(Exception):
    """A text is not valid YAML for Kubernetes."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why


def read_yaml(text: str) -> Iterator[tuple[int, Any]]:
    """Yield every document with its first line number; raise BadYAML at the first error."""
    try:
        yield from _Reader(yaml.CSafeLoader(text)).documents()
    except yaml.MarkedYAMLError as error:
        raise _explained(error, text) from error
    except yaml.reader.ReaderError as error:
        line = text.encode(errors="replace")[: error.position].count(b"\n") + 1
        raise BadYAML(line, f"{error.reason}: remove character {error.character!r}") from error
    except UnicodeEncodeError as error:
        raise BadYAML(
            text.count("\n", 0, error.start) + 1, "a text is not Unicode: remove the lone surrogate"
        ) from error


def read_one(data: bytes) -> Any:
    """Return the only document of a file, None for an empty file; raise BadYAML if it is invalid."""
    documents = [(line, value) for line, value in read_yaml(decode_text(data)) if value is not None]
    if len(documents) > 1:
        raise BadYAML(documents[1][0], "a second document begins here: remove it")
    return documents[0][1] if documents else None


def decode_text(data: bytes) -> str:
    """Return the text of a UTF-8 file; raise BadYAML for any other encoding."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadYAML(line, "is not UTF-8 text: save it as UTF-8") from error


@dataclass
class _Reader:
    """Builds values from events; `size` and `deepest` count the built values, including expanded aliases."""

    parser: yaml.CSafeLoader
    size: int = 0
    deepest: int = 0  # number of levels below the root of the value being built
    # Value, size and levels of each anchor, by its name.
    anchors: dict[str, tuple[Any, int, int]] = field(default_factory=dict)

    def documents(self) -> Iterator[tuple[int, Any]]:
        while (event := self.parser.get_event()) is not None:
            if isinstance(event, yaml.DocumentStartEvent):
                self.anchors.clear()
                root = self._next()
                yield _line(root), self._value(root, 0)

    def _next(self) -> Any:
        return self.parser.get_event()

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        _expect_depth(event, depth)
        before, outside = self.size, self.deepest
        self.size += NODE_SIZE
        self.deepest = depth
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            self.size += len(event.value)
            value = _scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = list(self._entries(event, depth))
        else:
            value = self._mapping(event, depth)
        if event.anchor:
            self.anchors[event.anchor] = (value, self.size - before, self.deepest - depth)
        self.deepest = max(self.deepest, outside)
        return value

    def _alias(self, event: Any, depth: int) -> Any:
        if event.anchor not in self.anchors:
            raise BadYAML(
                _line(event),
                f"alias *{event.anchor} refers to no earlier anchor: write &{event.anchor} first",
            )
        value, size, levels = self.anchors[event.anchor]
        _expect_depth(event, depth + levels)
        self.deepest = max(self.deepest, depth + levels)
        self.size += size
        if self.size > SIZE_LIMIT:
            raise BadYAML(_line(event), f"aliases make it more than {SIZE_LIMIT >> 20} MB: use fewer")
        return _copied(value)

    def _entries(self, start: Any, depth: int) -> Iterator[Any]:
        _expect_tag(start, "seq")
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            yield self._value(event, depth + 1)

    def _mapping(self, start: Any, depth: int) -> dict[str, Any]:
        _expect_tag(start, "map")
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        own: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = _key(event)
            value = self._value(self._next(), depth + 1)
            if key == _MERGE and event.implicit[0]:
                merged |= _merged(value, event)
                continue
            if key in own:
                first = f"first on line {lines[key]}"
                raise BadYAML(_line(event), f"key {key!r} appears twice ({first}): remove one")
            own[key], lines[key] = value, _line(event)
        return {**merged, **own}


def _expect_depth(event: Any, depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise BadYAML(
            _line(event), f"nested more than {DEPTH_LIMIT} deep, and no Kubernetes object is: flatten it"
        )


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _key(event: Any) -> str:
    """Return a key as text: Kubernetes has only text keys, so `1` and `on` are taken literally."""
    if not isinstance(event, yaml.ScalarEvent):
        raise BadYAML(_line(event), "a key is an alias, a list or a mapping: write a text")
    return str(event.value)


def _merged(value: Any, event: Any) -> dict[str, Any]:
    sources = value if isinstance(value, list) else [value]
    if not all(isinstance(source, dict) for source in sources):
        raise BadYAML(_line(event), "<< merges mappings only: name mappings")
    whole: dict[str, Any] = {}
    for source in sources:
        whole = {**source, **whole}
    return whole


def _expect_tag(event: Any, kind: str) -> None:
    if event.tag not in {None, "!", _TAG + kind}:
        raise BadYAML(_line(event), f"tag {event.tag} means nothing to Kubernetes: remove it")


def _scalar(event: Any) -> Any:
    text = str(event.value)
    if event.implicit[0] and event.tag is None:
        return _plain(text)
    if event.tag in {None, "!", f"{_TAG}str"}:
        return text
    value = _plain(text)
    kinds: dict[str, Any] = {"int": int, "float": (int, float), "bool": bool, "null": type(None)}
    wanted = kinds.get(event.tag.removeprefix(_TAG))
    if wanted is None or not isinstance(value, wanted):
        raise BadYAML(_line(event), f"tag {event.tag} does not fit {text[:40]!r}: remove the tag")
    return value


def _plain(text: str) -> Any:
    """Return the value of an unquoted scalar."""
    if _NULL.fullmatch(text):
        return None
    word = _BOOL.fullmatch(text)
    if word:
        return word["true"] is not None
    if len(text) <= _LONG and _INT.fullmatch(text):
        return _integer(text)
    if len(text) <= _LONG and _FLOAT.fullmatch(text):
        return _finite(text)
    return text


def _integer(text: str) -> Any:
    digits = text.replace("_", "").lstrip("+-")
    try:
        size = int("0o" + digits[1:], 8) if re.fullmatch("0[0-7]+", digits) else int(digits, 0)
    except ValueError:  # for example `0_` and `0x_`, which have no digits
        return _finite(text)
    value = -size if text.startswith("-") else size
    return value if -(2**63) <= value < 2**64 else float(value)


def _finite(text: str) -> Any:
    """Return a number, or the text if JSON cannot represent it."""
    try:
        value = float(text)
    except ValueError:
        return text
    return value if abs(value) != float("inf") else text


def _explained(error: yaml.MarkedYAMLError, text: str) -> BadYAML:
    mark = error.problem_mark or error.context_mark
    lines = text.splitlines() or [""]
    # The reader reports a missing token after the last line.
    at = min(int(mark.line), len(lines) - 1) if mark else 0
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    why = str(error.problem or error.context)
    remedy = "indent it with spaces, here is a tab" if "\t" in indent else "fix the YAML here or just above"
    return BadYAML(at + 1, f"{why}: {remedy}")
