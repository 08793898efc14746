"""Exact Kubernetes quantities: "2", "1500m", "1.5", "64M", "1Gi", "2e3". No floats inside.

Source: k8s.io/apimachinery/pkg/api/resource, type Quantity (grammar, suffixes, rounding up of Value and MilliValue).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

from pinning.errors import BadQuantity

RawQuantity = str | int | float  # the API server writes strings; users also write numbers into YAML

_FORM = re.compile(
    r"([+-]?)([0-9]{1,64}(?:\.[0-9]{0,64})?|\.[0-9]{1,64})(?:([eE])([+-]?[0-9]{1,2})|([A-Za-z]{0,2}))"
)
_SUFFIXES: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}
_EXPECTED: Final = "a Kubernetes quantity such as 2, 1500m, 0.5, 64M or 1Gi"


@lru_cache(maxsize=4096)
def parse_quantity(value: RawQuantity) -> Fraction:
    """Return the exact amount; raise BadQuantity for a text that the API server would refuse."""
    if isinstance(value, int):
        return Fraction(value)
    text = repr(value) if isinstance(value, float) else value
    found = _FORM.fullmatch(text)
    scale = found and (Fraction(10) ** int(found[4]) if found[3] else _SUFFIXES.get(found[5]))
    if not found or not scale:
        raise BadQuantity(f"{text[:40]!r} is not {_EXPECTED}")
    amount = Fraction(found[2]) * scale
    return -amount if found[1] == "-" else amount


def millicores(value: RawQuantity) -> int:
    """Return thousandths, rounded up as the API server's MilliValue does."""
    return _ceil(parse_quantity(value) * 1000)


def whole(value: RawQuantity) -> int | None:
    """Return the amount when it is a whole number ("2", "2000m", "2e0"), else None."""
    amount = parse_quantity(value)
    return amount.numerator if amount.denominator == 1 else None


def rounded_up(value: RawQuantity) -> int:
    """Return the amount rounded up to an integer, as the API server's Value does (800m -> 1)."""
    return _ceil(parse_quantity(value))


def _ceil(amount: Fraction) -> int:
    return -(-amount.numerator // amount.denominator)
