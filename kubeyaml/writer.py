"""YAML writer whose output kubectl reads back unchanged."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBER_LIKE: Final = re.compile(r"[-+.]?[0-9][-+.:_0-9a-fA-FoxOX]*|[yYnN]")
_ESCAPABLE: Final = re.compile(r"[^ -~\n]")
_TEXT: Final = "tag:yaml.org,2002:str"


def write_yaml(documents: Iterable[Any]) -> str:
    """Return the documents as YAML, keys in their given order."""
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**16, explicit_start=True
    ).removeprefix("---\n")


class _Dumper(yaml.CSafeDumper):
    """Writes texts so that kubectl's YAML reads them as texts."""


def _represent_text(dumper: _Dumper, text: str) -> Any:
    """Quote texts that kubectl would read as numbers (`12e4567`), and use block style for multi-line texts.

    Texts with non-ASCII characters are quoted as well, so that these may be escaped afterwards.
    """
    style = '"' if _ESCAPABLE.search(text) or _NUMBER_LIKE.fullmatch(text) else "|" if "\n" in text else None
    return dumper.represent_scalar(_TEXT, text, style=style)


def _no_alias(dumper: _Dumper, value: Any) -> bool:
    return True


_Dumper.add_representer(str, _represent_text)
_Dumper.ignore_aliases = _no_alias  # type: ignore[method-assign,assignment]
