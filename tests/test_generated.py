"""The code that protoc writes of the messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROTOS = sorted(Path("agent").rglob("*.proto"))
WRITTEN = sorted(path.with_name(f"{path.stem}_pb2{end}") for path in PROTOS for end in (".py", ".pyi"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder where `make proto` has written."""
    folder = tmp_path_factory.mktemp("proto")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I."]
    subprocess.run([*command, f"--python_out={folder}", f"--pyi_out={folder}", *map(str, PROTOS)], check=True)
    return folder


@pytest.mark.parametrize("path", WRITTEN, ids=str)
def test_code_is_that_of_the_messages(written: Path, path: Path) -> None:
    """The checked-in code is what `make proto` writes."""
    assert (written / path).read_text() == path.read_text()


def test_nothing_else_is_written(written: Path) -> None:
    """Every file that protoc writes is checked in, and no other."""
    assert sorted(path.relative_to(written) for path in written.rglob("*_pb2*")) == WRITTEN
    checked_in = [path for path in Path("agent").rglob("*_pb2.py*") if path.suffix in {".py", ".pyi"}]
    assert sorted(checked_in) == WRITTEN
