"""Plain-text summary of a webhook's answer."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from demo.webhook import Answer

WIDTH: Final = 110
INDENT: Final = "     "


def sentence(path: Path) -> str:
    """Return an example's description: its first comment lines, up to directives."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# ") or line.startswith(("# by:", "# expect:")):
            break
        lines.append(line.removeprefix("# "))
    return " ".join(lines)


def shown(number: int, path: Path, answer: Answer) -> str:
    """Return the lines of one example; for a refusal only the causes."""
    head = f"{number:>3}  {answer.verdict.upper():<8} {path}"
    marked = [
        *(("x ", _finding(cause["field"], cause["message"])) for cause in answer.causes),
        *(("+ ", addition(step)) for step in answer.patch if answer.allowed),
        *(("! ", _finding(*warning.split(": ", 1))) for warning in answer.warnings if answer.allowed),
    ]
    lines = [line for mark, text in [("", sentence(path)), *marked] for line in _wrapped(text, mark)]
    return "\n".join([head, *lines])


def addition(step: dict[str, Any]) -> str:
    """Return one operation of a patch as text: `containers[0].env: CMK_NUM_CORES=2`."""
    path = step["path"].removeprefix("/spec/").removeprefix("/").removesuffix("/-")
    *parents, key = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]
    if step["op"] == "remove":
        return f"{_field([*parents, key])}: removed"
    value = step["value"]
    if isinstance(value, str):
        return f"{_field(parents)}: {key}={value}"
    return f"{_field([*parents, key])}: {brief(value)}"


def brief(value: Any) -> str:
    """Return a short text about a value of a pod."""
    if isinstance(value, list):
        return ", ".join(map(brief, value))
    if not isinstance(value, dict):
        return str(value)
    if "mountPath" in value:
        return f"{value['mountPath']}{' (read-only)' if value.get('readOnly') else ''}"
    if "hostPath" in value:
        return f"{value['name']} (host directory {value['hostPath']['path']})"
    if "effect" in value:
        return f"{value['key']}={value['value']}:{value['effect']}"
    if set(value) == {"name", "value"}:
        return f"{value['name']}={value['value']}"
    return ", ".join(_entry(key, inner) for key, inner in value.items())


def _entry(key: str, value: Any) -> str:
    return f"{key} {brief(value)}" if isinstance(value, dict) else f"{key}={brief(value)}"


def _field(keys: list[str]) -> str:
    return re.sub(r"\.(\d+)", r"[\1]", ".".join(keys))


def _finding(field: str, message: str) -> str:
    return f"{field}: {message.removeprefix('corepin: ')}"


def _wrapped(text: str, mark: str) -> Iterator[str]:
    """Yield the lines of a wrapped text, with a mark before the first and a hanging indent."""
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent=INDENT + mark,
        subsequent_indent=INDENT + " " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )
