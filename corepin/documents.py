"""Input and output documents of the offline commands: files or standard input, and the objects in them."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from corepin.errors import CommandFailed
from corepin.flags import filled
from corepin.json_text import is_json, read_json
from drawing.spans import Painted
from kubeyaml.reader import SIZE_LIMIT, BadYAML, decode_text, read_yaml
from logs.printable import harmless

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

STDIN: Final = "-"
_LIST: Final = "List"
_TEMPLATE: Final = re.compile(r"\{[{%]")  # start of an expression in templates of Helm and Jinja


@dataclass(frozen=True)
class Document:
    """One YAML document: `content` is a Kubernetes object or a list of them."""

    source: str
    line: int
    content: dict[str, Any]

    def failed(self, why: str) -> CommandFailed:
        """Return the error about this document, with its file and line."""
        return CommandFailed(f"{self.source}:{self.line}: {why}")

    def items(self) -> Iterator[Item]:
        """Yield the objects of the document: itself, or the entries of a `kind: List`, nested ones too."""
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
        """Return an object; entries of a typed list (PodList) may omit their kind, which is then `kind`."""
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
        """Return a required member of an object as text; entries of a typed list may omit it for `default`."""
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
    """One Kubernetes object, with its JSON pointer in the document."""

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
        """The object's name; `prefix-...` for a generateName."""
        prefix = self.metadata.get("generateName")
        return str(self.metadata.get("name") or (f"{prefix}..." if prefix else ""))

    @property
    def namespace(self) -> str:
        """The namespace, empty if the document has none."""
        return str(self.metadata.get("namespace") or "")

    @property
    def title(self) -> str:
        """Kind and name for messages: `Pod team/web`."""
        place = f"{self.namespace}/{self.name or '(no name)'}" if self.namespace else self.name or "(no name)"
        return f"{self.kind} {place}"

    def failed(self, path: tuple[str, ...], why: str) -> CommandFailed:
        """Return the error about a field of the object."""
        return self.document.failed(f"{self.title}: {'.'.join(path)} {why}")


def add_file_flag(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the flag for input files, as in kubectl."""
    parser.add_argument(
        "-f",
        "--filename",
        metavar="FILE",
        type=filled,
        action="append",
        required=required,
        help="YAML or JSON file, - for standard input; may be repeated",
    )


def read_documents(source: str) -> list[Document]:
    """Return the non-empty documents of a file; raise CommandFailed naming file and line."""
    shown = shown_source(source)
    documents = [
        Document(shown, line, _object(content, shown, line)) for line, content in read_values(source)
    ]
    if not documents:
        raise CommandFailed(f"{shown}: holds no document: write an object with apiVersion and kind")
    return documents


def read_values(source: str) -> list[tuple[int, Any]]:
    """Return the values of a file's non-empty documents with their lines; raise CommandFailed if one is invalid."""
    parsed = _parsed(read_text(source), shown_source(source))
    return [(line, content) for line, content in parsed if content is not None]


def read_text(source: str) -> str:
    """Return the text of a file up to the size limit, or of standard input; else raise CommandFailed."""
    shown = shown_source(source)
    return _decoded(_read(source, shown), shown)


def shown_source(source: str) -> str:
    """Return the name of a source for messages."""
    return "standard input" if source == STDIN else source


def write_out(text: str) -> None:
    """Print text escaped for terminals; raise CommandFailed if the reader has closed the pipe (`... | head`).

    The output is always UTF-8, like the files, so that names outside the locale's character set do not fail.
    """
    write_painted(Painted(harmless(text)))


def write_error(text: str) -> None:
    """Print text on standard error, escaped for terminals."""
    if sys.stderr is not None:  # None if closed by `2>&-`; print would then write to standard output
        print(harmless(text), file=sys.stderr)


def write_painted(text: Painted) -> None:
    """Print text with corepin's own colours; other control characters were already escaped in it."""
    if sys.stdout is None:  # closed by `>&-`
        raise CommandFailed("standard output is closed")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        # Without this Python reports the error again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise CommandFailed("standard output was closed before everything was written") from error
    except OSError as error:
        raise CommandFailed(f"standard output: {error.strerror}") from error


def _read(source: str, shown: str) -> bytes:
    try:
        if source == STDIN and sys.stdin is None:  # closed by `<&-`
            raise CommandFailed(f"{shown} is closed: name a file")
        if source == STDIN:
            data = sys.stdin.buffer.read(SIZE_LIMIT + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:  # ValueError: the name contains a null byte
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
    """Return a hint that the text is a template if a template expression precedes the error, else an empty text."""
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
    """Return the name of a value that is not a string, for messages: "true", "the number 3", "a list"."""
    if isinstance(value, bool):
        return str(value).lower()
    return _what(value) if isinstance(value, list | dict) else f"the number {str(value)[:20]}"


def _dotted(pointer: str) -> str:
    """Return a JSON pointer as a field path, such as items[3]."""
    return pointer.removeprefix("/").replace("items/", "items[").replace("/", "].") + "]"
