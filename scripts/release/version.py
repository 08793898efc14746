"""The version, which pyproject.toml defines; `make version VERSION=1.2.3` writes it to all places."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# Places of the version: file patterns, and the text before the version.
_NUMBER: Final = r"\d+\.\d+\.\d+"
_PLACES: Final = (
    ("pyproject.toml", r'^version = "'),
    ("manifests/helm/Chart.yaml", r"^(?:version|appVersion): "),
    ("manifests/**/kustomization.yaml", r"newName: corepin, newTag: "),
    ("docs/operator-guide.md", r"^  newTag: "),
    ("docs/operator-guide.md", r"kubectl-corepin-"),
    *(
        (pattern, r"\bcorepin:(?=\d)")
        for pattern in (
            "README.md",
            "docs/*.md",
            "examples/config/*",
            "manifests/**/*.yaml",
            "corepin/cmk/*.*",
        )
    ),
    ("tests/shim/*.py", r"\(corepin "),
    *(
        (f"{folder}/*.py", r"\bcorepin:(?=\d)")
        for folder in ("tests/image", "tests/manifests", "tests/environments/guest", "webhook/config")
    ),
)


def version_of(root: Path) -> str:
    """Return the version of a checkout."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def named(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield every place that names a version, with that version."""
    for pattern, before in _PLACES:
        for path in sorted(root.glob(pattern)):
            for match in re.finditer(f"{before}({_NUMBER})", path.read_text(encoding="utf-8"), re.MULTILINE):
                yield path, match[1]


def write(root: Path, version: str) -> None:
    """Write a version to every place that names one."""
    if not re.fullmatch(_NUMBER, version):
        raise SystemExit(f"VERSION is {version!r}: write three numbers, for example 1.2.3")
    for pattern, before in _PLACES:
        for path in root.glob(pattern):
            text = path.read_text(encoding="utf-8")
            path.write_text(
                re.sub(f"({before}){_NUMBER}", rf"\g<1>{version}", text, flags=re.MULTILINE), encoding="utf-8"
            )


if __name__ == "__main__":
    write(Path(), sys.argv[1])
