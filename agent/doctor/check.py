"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Outcome of a check: fine, a problem, or unknown."""

    OK = "ok"
    FINDING = "finding"
    UNKNOWN = "unknown"  # the facts could not be read


@dataclass(frozen=True, slots=True)
class Check:
    """One check's result."""

    subject: str
    verdict: Verdict
    message: str
    remedy: str = ""


def ok(subject: str, message: str, remedy: str = "") -> Check:
    """Return a check without a problem; `remedy` may suggest an improvement."""
    return Check(subject, Verdict.OK, message, remedy)


def finding(subject: str, message: str, remedy: str) -> Check:
    """Return a check that found a problem, with its remedy."""
    return Check(subject, Verdict.FINDING, message, remedy)


def unknown(subject: str, message: str, remedy: str) -> Check:
    """Return a check whose facts could not be read, with the means to read them."""
    return Check(subject, Verdict.UNKNOWN, message, remedy)
