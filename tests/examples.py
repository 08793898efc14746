"""The examples, with what their first lines promise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path("examples")
EXPECT, BY = "# expect: ", "# by: "


@dataclass(frozen=True)
class Example:
    """One example file with what its first lines promise."""

    path: Path
    expected: tuple[str, ...]  # `allowed`, `patched`, `refused FIELD`, `warning FIELD`
    by: str

    @classmethod
    def read(cls, path: Path) -> Example:
        """Read the comment lines with which a file begins."""
        head = [
            line
            for line in path.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
            if line.startswith("#")
        ]
        said = [line.removeprefix(BY) for line in head if line.startswith(BY)]
        expected = tuple(line.removeprefix(EXPECT) for line in head if line.startswith(EXPECT))
        return cls(path, expected, *said or ["corepin"])


EXAMPLES = [example for example in map(Example.read, sorted(ROOT.glob("*/*.yaml"))) if example.expected]


def ids(examples: list[Example]) -> list[str]:
    """Return names for the parameters: `crane/share`."""
    return [f"{example.path.parent.name}/{example.path.stem}" for example in examples]
