"""The documents that the offline commands take and give: files or standard input, and the objects in them."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from corepin.drawing.spans import Painted
from corepin.errors import CommandFailed
from corepin.json_text import is_json, read_json
from corepin.terminal import harmless
from kubeyaml.reader import SIZE_LIMIT, BadYAML, decode_text, read_yaml

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

STDIN: Final = "-"
_LIST: Final = "List"
_TEMPLATE: Final = re.compile(r"\{[{%]")  # of Helm, and of Jinja


@dataclass(frozen=True)
class Document:
    """One YAML document: `content` is a Kubernetes object or a list of them."""

    source: str
    line: int
    content: dict[str, Any]

    def failed(self, why: str) -> CommandFailed:
        """Return the failure that this document causes, naming its file and line."""
        return CommandFailed(f"{self.source}:{self.line}: {why}")

    def items(self) -> Iterator[Item]:
        """Yield the objects of the document: itself, or the entries of a `kind: List`, however deep."""
        yield from self._items("", self.content, "")

    def _items(self, pointer: str, content: dict[str, Any], kind: str) -> Iterator[Item]:
        item = self._item(pointer, content, kind)
        entries = content.get("items")
        if not item.kind.endswith(_LIST) or not isinstance(entries, list):
            yield item
            return
        for at, entry in enumerate(entries):
            below = f"{pointer}/items/{at}"
            if not isinstance(entry, dict):
                raise self.failed(
                    f"{_dotted(below)} is {_what(entry)}, not an object: write an object, or remove the entry"
                )
            yield from self._items(below, entry, item.kind.removesuffix(_LIST))

    def _item(self, pointer: str, content: dict[str, Any], kind: str) -> Item:
        """Return an object with its kind; the entries of a typed list (PodList) need not state theirs."""
        list_version = self.content.get("apiVersion") if kind else None
        api_version = self._stated("apiVersion", content, pointer, list_version, "v1")
        stated = self._stated("kind", content, pointer, kind or None, "Pod")
        metadata = content.get("metadata")
        return Item(
            self,
            pointer,
            content,
            api_version,
            stated,
            metadata if isinstance(metadata, dict) else {},
        )

    def _stated(
        self, name: str, content: dict[str, Any], pointer: str, default: str | None, example: str
    ) -> str:
        """Return a text that every object states; `default` is what a list says for its entries."""
        value = content.get(name)
        value = default if value is None else value
        if isinstance(value, str) and value:
            return value
        where = f"{_dotted(pointer)}.{name}" if pointer else name
        if value is None:
            raise self.failed(f"{where} is missing: add it, for example {name}: {example}")
        found = "empty" if value == "" else f"{_shown_value(value)}, expected a text"
        raise self.failed(f"{where} is {found}: write for example {name}: {example}")


@dataclass(frozen=True)
class Item:
    """One Kubernetes object, with its place in its document as a JSON pointer."""

    document: Document
    pointer: str
    content: dict[str, Any]
    api_version: str
    kind: str
    metadata: dict[str, Any]

    @property
    def group(self) -> str:
        """The API group, empty for the core's kinds."""
        return self.api_version.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The object's name, `prefix-...` where the API server will complete it."""
        prefix = self.metadata.get("generateName")
        return str(self.metadata.get("name") or (f"{prefix}..." if prefix else ""))

    @property
    def namespace(self) -> str:
        """The namespace, empty where the document states none."""
        return str(self.metadata.get("namespace") or "")

    @property
    def title(self) -> str:
        """The object in words: `Pod team/web`."""
        place = f"{self.namespace}/{self.name or '(no name)'}" if self.namespace else self.name or "(no name)"
        return f"{self.kind} {place}"

    def failed(self, path: tuple[str, ...], why: str) -> CommandFailed:
        """Return the failure that a field of the object causes."""
        return self.document.failed(f"{self.title}: {'.'.join(path)} {why}")


def add_file_flag(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the flag that names the documents, as kubectl has it."""
    parser.add_argument(
        "-f",
        "--filename",
        metavar="FILE",
        action="append",
        required=required,
        help="YAML or JSON file, - for standard input; may be repeated",
    )


def read_documents(source: str) -> list[Document]:
    """Return the documents of a file that are not empty; raise CommandFailed naming file and line."""
    shown = _shown(source)
    documents = [
        Document(shown, line, _object(content, shown, line)) for line, content in read_values(source)
    ]
    if not documents:
        raise CommandFailed(f"{shown}: holds no document: write an object with apiVersion and kind")
    return documents


def read_values(source: str) -> list[tuple[int, Any]]:
    """Return what the documents of a file hold, with their lines, but for empty ones; else raise CommandFailed."""
    parsed = _parsed(read_text(source), _shown(source))
    return [(line, content) for line, content in parsed if content is not None]


def read_text(source: str) -> str:
    """Return the text of a file of reasonable size, or of standard input; else raise CommandFailed."""
    shown = _shown(source)
    return _decoded(_read(source, shown), shown)


def _shown(source: str) -> str:
    return "standard input" if source == STDIN else source


def write_out(text: str) -> None:
    """Print text made harmless for a terminal; raise CommandFailed where its reader has gone (`... | head`).

    It is UTF-8 wherever it goes, as the files are: a name that the locale cannot spell is no reason to fail.
    """
    write_painted(Painted(harmless(text)))


def write_error(text: str) -> None:
    """Print text on standard error, made harmless for a terminal."""
    print(harmless(text), file=sys.stderr)


def write_painted(text: Painted) -> None:
    """Print text with colours of ours as it is; all else in it was made harmless when it was painted."""
    if sys.stdout is None:  # `>&-`
        raise CommandFailed("standard output is closed")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at exit
        raise CommandFailed("standard output was closed before everything was written") from error
    except OSError as error:
        raise CommandFailed(f"standard output: {error.strerror}") from error


def _read(source: str, shown: str) -> bytes:
    try:
        if source == STDIN and sys.stdin is None:  # `<&-`
            raise CommandFailed(f"{shown} is closed: name a file")
        if source == STDIN:
            data = sys.stdin.buffer.read(SIZE_LIMIT + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise CommandFailed(f"{shown}: {_unreadable(error)}") from error
    if len(data) > SIZE_LIMIT:
        raise CommandFailed(f"{shown}: is larger than {SIZE_LIMIT >> 20} MB: split it")
    return data


def _unreadable(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file: check the path, or write - for standard input"
    if isinstance(error, IsADirectoryError):
        return "is a directory: name a file in it"
    return f"{getattr(error, 'strerror', None) or error}: name a file that can be read"


def _decoded(data: bytes, shown: str) -> str:
    try:
        return decode_text(data)
    except BadYAML as error:
        raise CommandFailed(f"{shown}:{error.line}: {error.why}") from error


def _parsed(text: str, shown: str) -> list[tuple[int, Any]]:
    try:
        try:
            return list(read_yaml(text))
        except BadYAML:
            if not is_json(text):
                raise
            return list(read_json(text))
    except BadYAML as error:
        raise CommandFailed(f"{shown}:{error.line}: {_as_template(text, error) or error.why}") from error


def _as_template(text: str, error: BadYAML) -> str:
    """Say that the text is a template, where its marks stand before what cannot be read; else nothing."""
    marks = (number for number, line in enumerate(text.splitlines(), 1) if _TEMPLATE.search(line))
    line = next(marks, error.line + 1)
    if line > error.line:
        return ""
    problem = f"this is a template (line {line} has a mark such as {{{{ }}}})"
    return f"{problem}: render it first, for example with `helm template`"


def _object(content: Any, shown: str, line: int) -> dict[str, Any]:
    if not isinstance(content, dict):
        expected = "expected a Kubernetes object"
        remedy = "write a mapping with apiVersion and kind"
        raise CommandFailed(f"{shown}:{line}: {expected}, found {_what(content)}: {remedy}")
    return content


def _what(value: Any) -> str:
    kinds = {list: "a list", dict: "a mapping", str: "a text", bool: "true or false", type(None): "nothing"}
    return kinds.get(type(value), "a number")


def _shown_value(value: Any) -> str:
    """Return what stands where a text is expected, as YAML has it if it is short."""
    if isinstance(value, bool):
        return str(value).lower()
    return _what(value) if isinstance(value, list | dict) else f"the number {str(value)[:20]}"


def _dotted(pointer: str) -> str:
    """Return a pointer as field paths have it: items[3]."""
    return pointer.removeprefix("/").replace("items/", "items[").replace("/", "].") + "]"
