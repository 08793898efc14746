"""Normalization of a release's image: no traces of the build, and unchanged content."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

from scripts.release.image import normalise
from tests.image.archive import Archive
from tests.release.images import EPOCH, write_image


def released(folder: Path, *, when: int, host: str) -> Path:
    """Return the normalized image of a build."""
    folder.mkdir()
    built = write_image(folder / "built.tar", when=when, host=host)
    normalise(built, folder / "image.tar", "docker.io/library/corepin:1.2.3", EPOCH)
    return folder / "image.tar"


def test_another_build_gives_the_same_bytes(tmp_path: Path) -> None:
    """Builds at other times and on other hosts give the same bytes."""
    first = released(tmp_path / "a", when=EPOCH + 100, host="a")
    second = released(tmp_path / "b", when=EPOCH + 900, host="b")

    assert first.read_bytes() == second.read_bytes()


def test_image_is_what_was_built(tmp_path: Path) -> None:
    """Normalization keeps files, user, command and the times of old files; the digests are those of the layers."""
    image = released(tmp_path / "a", when=EPOCH + 100, host="a")
    archive = Archive(image)

    assert archive.manifest["RepoTags"] == ["docker.io/library/corepin:1.2.3"]
    assert archive.settings == {"User": "65532:65532", "Entrypoint": ["corepin"]}
    assert {member.name: member.mtime for member in archive.layers[0]} == {"etc/passwd": EPOCH}
    with tarfile.open(image) as members:
        (layer,) = archive.manifest["Layers"]
        content, config = members.extractfile(layer), members.extractfile(archive.manifest["Config"])
        assert content
        assert config
        digest = hashlib.sha256(content.read()).hexdigest()
        assert json.load(config)["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    assert sorted(path.name for path in image.parent.iterdir()) == ["built.tar", "image.tar"]
