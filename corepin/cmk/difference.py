"""Changes that `cluster-init` would make to configurations, node labels and agents, as text lines. Pure."""

from __future__ import annotations

from dataclasses import fields
from difflib import unified_diff
from typing import TYPE_CHECKING

from corepin.cmk.numbers import CONFIG_MAP
from corepin.cmk.overlay import Choices
from logs.printable import plain
from pinning.contract import AGENT_NODE_LABEL, CPU_GROUP_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WORDS = {
    "image": "image",
    "pull_policy": "pull policy of the image",
    "pull_secret": "pull secret of the image",
    "install_dir": "install directory",
    "account": "account of injected pods",
    "has_taint": "taint cmk=true:NoSchedule",
}
LABELS = (AGENT_NODE_LABEL, CPU_GROUP_LABEL)


def key_lines(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Yield the changes of the ConfigMap's keys, with their changed lines."""
    for key in sorted(after):
        old, new = before.get(key), after[key]
        if old != new:
            yield f"{CONFIG_MAP}: {key} is {'new' if old is None else 'changed'}"
            yield from map(plain, _changed_lines(old or "", new))


def choice_lines(before: Choices, after: Choices) -> Iterator[str]:
    """Yield the changed installation flags; a flag whose old value is unknown is skipped."""
    for it in fields(Choices):
        old, new = getattr(before, it.name), getattr(after, it.name)
        if old is not None and old != new:
            yield plain(f"all nodes: {WORDS[it.name]}: {_shown(old)} -> {_shown(new)}")


def node_lines(
    nodes: Mapping[str, Mapping[str, str]], wanted: Mapping[str, Mapping[str, str | None]]
) -> Iterator[str]:
    """Yield the label changes of nodes; None removes a label."""
    for name in sorted(wanted):
        for label in LABELS:
            old, new = nodes[name].get(label), wanted[name].get(label, nodes[name].get(label))
            if old != new:
                now = f"{label}={new}" if new is not None else f"without {label}"
                yield plain(f"node {name}: {now}" + (f" (was {old})" if old is not None else ""))


def _changed_lines(old: str, new: str) -> Iterator[str]:
    lines = unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1)
    yield from (f"  {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "set" if value else "not set"
    return str(value or "none")
