"""What came of looking at one thing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What came of looking at one thing."""

    OK = "ok"
    FINDING = "finding"
    UNKNOWN = "unknown"  # it could not be looked at


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    subject: str
    verdict: Verdict
    message: str
    remedy: str = ""


def ok(subject: str, message: str, remedy: str = "") -> Check:
    """Return that nothing is wrong; what could be better is its remedy."""
    return Check(subject, Verdict.OK, message, remedy)


def finding(subject: str, message: str, remedy: str) -> Check:
    """Return that something is wrong, and what to do."""
    return Check(subject, Verdict.FINDING, message, remedy)


def unknown(subject: str, message: str, remedy: str) -> Check:
    """Return that something could not be looked at, and what is missing for that."""
    return Check(subject, Verdict.UNKNOWN, message, remedy)
