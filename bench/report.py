"""Report of the webhook benchmark: medians of the rounds, ratios to corepin's webhook, and targets."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from bench.contenders import ALONE, FASTAPI, GO, OURS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.load import Sample

COLUMNS: Final[tuple[tuple[str, str, Callable[[Sample], float]], ...]] = (
    ("CPU us/review", "{:.1f}", lambda sample: sample.cpu_us),
    ("reviews/s", "{:.0f}", lambda sample: sample.per_second),
    ("p50 ms", "{:.2f}", lambda sample: sample.p50_ms),
    ("p99 ms", "{:.2f}", lambda sample: sample.p99_ms),
    ("RSS MB", "{:.1f}", lambda sample: sample.resident_mb),
)
TARGETS: Final = (  # CPU time per review: numerator, denominator, largest ratio
    (OURS, FASTAPI, 1.25),
    (OURS, GO, 0.2),
    (ALONE, GO, 0.2),
)


def table(rounds: Mapping[str, Sequence[Sample]]) -> Iterator[str]:
    """Yield the lines of figures, and then the ratios of corepin's figures to the others' (below 1: lower)."""
    heads = [head for head, _, _ in COLUMNS]
    yield _line("", heads)
    for name, samples in rounds.items():
        yield _line(name, [form.format(median(map(read, samples))) for _, form, read in COLUMNS])
    yield ""
    yield _line(f"{OURS} in ...", heads)
    for name in rounds:
        if name != OURS:
            yield _line(name, [f"{_ratio(rounds, OURS, name, read):.2f} x" for _, _, read in COLUMNS])


def verdicts(rounds: Mapping[str, Sequence[Sample]]) -> Iterator[tuple[bool, str]]:
    """Yield whether each measured target holds, with a sentence."""
    for name, other, limit in TARGETS:
        if other in rounds:
            found = _ratio(rounds, name, other, lambda sample: sample.cpu_us)
            holds = found <= limit
            sentence = f"{name}: CPU per review {found:.2f} x {other}'s, target {limit:.2f} x"
            yield holds, f"{'holds ' if holds else 'MISSED'}  {sentence}"


def _ratio(
    rounds: Mapping[str, Sequence[Sample]], name: str, other: str, read: Callable[[Sample], float]
) -> float:
    """Return the median of the rounds' ratios, on which a slow round has no effect."""
    pairs = zip(rounds[name], rounds[other], strict=True)
    return median(read(mine) / read(theirs) for mine, theirs in pairs)


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<20}" + "".join(f"{cell:>15}" for cell in cells)
