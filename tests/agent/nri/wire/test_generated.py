"""The code that protoc writes of the messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path("agent/nri/wire")
WRITTEN = ["nri_pb2.py", "nri_pb2.pyi", "ttrpc_pb2.py", "ttrpc_pb2.pyi"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder where `make proto` has written."""
    folder = tmp_path_factory.mktemp("proto")
    protos = sorted(map(str, FOLDER.glob("*.proto")))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I."]
    subprocess.run([*command, f"--python_out={folder}", f"--pyi_out={folder}", *protos], check=True)
    return folder / FOLDER


@pytest.mark.parametrize("name", WRITTEN)
def test_code_is_that_of_the_messages(written: Path, name: str) -> None:
    """What is checked in is what `make proto` writes."""
    assert (written / name).read_text() == (FOLDER / name).read_text()


def test_nothing_else_is_written(written: Path) -> None:
    """Every file that protoc writes is checked in, and no other."""
    assert sorted(path.name for path in written.iterdir()) == WRITTEN
    assert sorted(path.name for path in FOLDER.glob("*_pb2*")) == WRITTEN
