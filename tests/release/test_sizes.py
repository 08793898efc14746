"""The sizes that `make release` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.release.sizes import PULLED, compared, sizes
from tests.release.images import EPOCH, write_image

if TYPE_CHECKING:
    from pathlib import Path


def test_sizes_are_those_of_the_files_and_of_the_layers(tmp_path: Path) -> None:
    """Sizes are listed by file name without the version; an image has the size of its file and its pull size."""
    (tmp_path / "corepin-1.2.3.tgz").write_bytes(b"x" * 500)
    image = write_image(tmp_path / "corepin-1.2.3-image.tar", when=EPOCH, host="a", large="x" * 1_000_000)

    found = sizes(tmp_path)
    assert found.keys() == {"corepin.tgz", "corepin-image.tar", PULLED}
    assert (found["corepin.tgz"], found["corepin-image.tar"]) == (500, image.stat().st_size)
    assert 1_000 < found[PULLED] < 10_000


def test_change_is_that_since_the_release_before() -> None:
    """A smaller file has a negative change; a file that the earlier release does not have has no change."""
    now = {"corepin.tgz": 1_500_000, "corepin.yaml": 10_000}
    assert list(compared(now, {"corepin.tgz": 2_000_000})) == [
        "     1.50 MB  corepin.tgz (-0.50 MB)",
        "     0.01 MB  corepin.yaml (no earlier release here)",
    ]
