"""A short folder for sockets."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder with a short path, because a socket's path has at most 107 bytes."""
    with TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)
