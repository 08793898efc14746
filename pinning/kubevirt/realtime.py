"""KubeVirt's realtime mask: which vCPU threads run under a realtime scheduler.

Grammar: items between commas, each `n`, `a-b` or `^n`; blanks around an item are ignored. Negation wins in any
order; an empty mask means all vCPUs; otherwise only listed ones, so that `^3` alone selects none. KubeVirt
compares texts: `03` is not vCPU 3. Ranges stay ranges here: `0-4000000000` costs nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from pinning.errors import BadContract

# Characters of a mask: a list of every other one of 4096 vCPUs takes a third of it.
LONGEST_MASK: Final = 2**15
_ITEM = re.compile(r"(\^)?([0-9]{1,18})|([0-9]{1,18})-([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class RealtimeMask:
    """A parsed mask; `misspelt` are numbers with leading zeros, which match no vCPU."""

    ranges: tuple[tuple[int, int], ...] = ()
    negated: frozenset[int] = frozenset()
    misspelt: tuple[str, ...] = ()
    is_empty: bool = False

    @classmethod
    def parse(cls, text: str) -> RealtimeMask:
        """Return the parsed mask; raise BadContract with the first invalid item."""
        if not text:
            return cls(is_empty=True)
        if len(text) > LONGEST_MASK:
            raise BadContract(f"its {len(text)} characters are more than the {LONGEST_MASK} that are read")
        found = [_parse_item(item.strip()) for item in text.split(",")]
        singles = [(item[1] or "", item[2]) for item in found if item[2]]
        listed = [(int(item[3]), int(item[4])) for item in found if item[3]]
        listed += [(int(digits), int(digits)) for sign, digits in singles if not sign and _is_plain(digits)]
        negated = frozenset(int(digits) for sign, digits in singles if sign and _is_plain(digits))
        misspelt = tuple(sign + digits for sign, digits in singles if not _is_plain(digits))
        return cls(tuple(sorted(listed)), negated, misspelt)

    def selected_count(self, vcpus: int) -> int:
        """Return how many of the vCPUs 0 to `vcpus` - 1 the mask selects."""
        if self.is_empty:
            return vcpus
        merged = _merge(self.ranges, vcpus - 1)
        excluded = sum(1 for cpu in self.negated if _covers(merged, cpu))
        return sum(high - low + 1 for low, high in merged) - excluded

    def strangers(self, vcpus: int) -> list[str]:
        """Return the items that name no vCPU of 0 to `vcpus` - 1."""
        ranges = [str(low) if low == high else f"{low}-{high}" for low, high in self.ranges if high >= vcpus]
        return [*ranges, *(f"^{cpu}" for cpu in sorted(self.negated) if cpu >= vcpus), *self.misspelt]


def _parse_item(item: str) -> re.Match[str]:
    match = _ITEM.fullmatch(item)
    if not match:
        raise BadContract(f"{item[:40]!r} is none of the forms 3, 0-3 and ^3")
    if match[3] and int(match[3]) > int(match[4]):
        raise BadContract(f"the range {item!r} runs backwards")
    return match


def _is_plain(digits: str) -> bool:
    return digits == str(int(digits))


def _covers(merged: list[tuple[int, int]], cpu: int) -> bool:
    position = bisect_right(merged, cpu, key=lambda span: span[0])
    return position > 0 and cpu <= merged[position - 1][1]


def _merge(ranges: tuple[tuple[int, int], ...], last: int) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in ((low, min(high, last)) for low, high in ranges if low <= last):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged
