"""Quantities: every Kubernetes form, exactly."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.errors import BadQuantity
from pinning.pods.quantity import millicores, parse_quantity, rounded_up, whole


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2", 2),
        ("2000m", 2),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+1", 1),
        ("-3", -3),
        ("100n", Fraction(1, 10**7)),
        ("7u", Fraction(7, 10**6)),
        ("3k", 3000),
        ("64M", 64_000_000),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("2E", 2 * 10**18),
        ("1Ki", 1024),
        ("1Mi", 1024**2),
        ("1.5Gi", Fraction(3, 2) * 1024**3),
        ("1Ti", 1024**4),
        ("1Pi", 1024**5),
        ("1Ei", 1024**6),
        ("2e3", 2000),
        ("2E3", 2000),
        ("1e-3", Fraction(1, 1000)),
        (2, 2),
        (0.1, Fraction(1, 10)),
    ],
)
def test_every_form_is_read_exactly(text: str | float, amount: Fraction | int) -> None:
    """Decimal, binary and exponent forms give the exact amount; a YAML float means what it shows."""
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "1e",
        "0x1",
        "1 ",
        " 1",
        "NaN",
        "inf",
        "1K",
        "2e999",
        "--1",
        "+",
        ".",
        "1Mi3",
        "²",
        "1mi",
        float("nan"),
        float("inf"),
    ],
)
def test_a_text_that_is_no_quantity_is_refused(text: str | float) -> None:
    """The error quotes the text and has examples of quantities."""
    with pytest.raises(BadQuantity, match="1500m"):
        parse_quantity(text)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=0, max_value=10**6, places=9))
def test_decimals_lose_nothing(value: Decimal) -> None:
    """A decimal is parsed exactly, to its last digit."""
    assert parse_quantity(f"{value:f}") == Fraction(value)


@pytest.mark.parametrize(
    ("text", "rounded", "milli", "exact"),
    [
        ("800m", 1, 800, None),
        ("1900m", 2, 1900, None),
        ("2", 2, 2000, 2),
        ("1n", 1, 1, None),
        ("-500m", 0, -500, None),
    ],
)
def test_rounding_is_the_api_servers(text: str, rounded: int, milli: int, exact: int | None) -> None:
    """Value and MilliValue round up; only a whole amount is whole."""
    assert (rounded_up(text), millicores(text), whole(text)) == (rounded, milli, exact)
