"""The image, built once for all tests of this folder."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.image.archive import Archive


@pytest.hookimpl(tryfirst=True)  # must run before pytest applies `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the image, because its build needs root and packages."""
    for item in items:
        if "image" in getattr(item, "fixturenames", ()):
            item.add_marker("node")


@pytest.fixture(scope="session")
def image() -> Archive:
    """Return the image; skip the test with the reason if it cannot be built."""
    from tests.image.archive import Archive
    from tests.image.build import build_image

    return Archive(build_image())


@pytest.fixture(scope="package")
def root(image: Archive, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the unpacked image."""
    folder = tmp_path_factory.mktemp("root-")
    folder.chmod(0o755)
    image.unpack(folder)
    yield folder
    shutil.rmtree(folder)
