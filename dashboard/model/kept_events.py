"""Bounded set of the agents' events, shared fairly between namespaces, as any user may create such events. Pure."""

from __future__ import annotations

from collections import Counter, UserDict, defaultdict
from typing import TYPE_CHECKING, Final

from dashboard.model.records import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    Item = tuple[str, Event]

PER_NODE: Final = 500  # events kept for each node: several for each pod of a kubelet
IN_ALL: Final = 5000
SLACK: Final = 500  # new events after which the oldest ones are evicted


class KeptEvents(UserDict[str, Event]):
    """The newest events by uid, at most IN_ALL + SLACK."""

    def __init__(self) -> None:
        super().__init__()
        self._added = 0

    def __setitem__(self, uid: str, event: Event) -> None:
        """Add an event; after SLACK new ones evict those above the limits."""
        self._added += uid not in self.data
        self.data[uid] = event
        if self._added > SLACK:
            self.data, self._added = newest(self.data), 0


def newest(events: Mapping[str, Event]) -> dict[str, Event]:
    """Return the newest PER_NODE events of each node, and of these the newest IN_ALL, shared fairly between namespaces.

    A user can write events about other nodes into a namespace; these cannot displace another namespace's events.
    """
    nodes: defaultdict[str, list[Item]] = defaultdict(list)
    for item in _by_age(events.items()):
        nodes[item[1].node].append(item)
    kept = _by_age(item for node in nodes.values() for item in _in_turns(node, _namespace)[:PER_NODE])
    return dict(_in_turns(_in_turns(kept, _place), _namespace)[:IN_ALL])


def _in_turns(items: Iterable[Item], group: Callable[[Item], Hashable]) -> list[Item]:
    """Return the items reordered round robin by group: the first of each group, then the second of each."""
    turns: Counter[Hashable] = Counter()
    ranked = []
    for item in items:
        ranked.append((turns[group(item)], item))
        turns[group(item)] += 1
    return [item for _, item in sorted(ranked, key=lambda it: it[0])]


def _by_age(items: Iterable[Item]) -> list[Item]:
    """Return the events sorted by time, newest first."""
    return sorted(items, key=lambda it: (it[1].time, it[0]), reverse=True)


def _namespace(item: Item) -> str:
    return item[1].pod.partition("/")[0]


def _place(item: Item) -> tuple[str, str]:
    return _namespace(item), item[1].node
