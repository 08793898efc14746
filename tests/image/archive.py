"""Reader of Docker archives: settings, files of each layer, and the unpacked file system."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Final

_GONE: Final = ".wh."  # whiteout: the layer deletes the file whose name follows the prefix


@dataclass(frozen=True)
class Archive:
    """A Docker archive, as `buildah push docker-archive:` writes it."""

    file: Path

    @cached_property
    def manifest(self) -> Any:
        """Return the archive's one entry: names, settings and layers."""
        return self._read("manifest.json")[0]

    @cached_property
    def settings(self) -> Any:
        """Return user, entry point, environment and so on."""
        return self._read(self.manifest["Config"])["config"]

    @property
    def bytes(self) -> list[int]:
        """Return the size of each layer's files, the base first."""
        return [sum(member.size for member in members) for members in self.layers]

    @cached_property
    def layers(self) -> list[list[tarfile.TarInfo]]:
        """Return the content of each layer, the base first."""
        return [self._members(layer) for layer in self.manifest["Layers"]]

    def unpack(self, folder: Path) -> None:
        """Unpack the layers into `folder`."""
        for layer, members in zip(self.manifest["Layers"], self.layers, strict=True):
            for path in map(PurePath, (member.name for member in members)):
                if path.name.startswith(_GONE):
                    _remove(folder / path.with_name(path.name.removeprefix(_GONE)))
            command = f"tar -xOf '{self.file}' {layer} | tar -xp -C '{folder}' --exclude='{_GONE}*'"
            subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True)

    def _read(self, name: str) -> Any:
        with tarfile.open(self.file) as archive:
            content = archive.extractfile(name)
            assert content
            return json.load(content)

    def _members(self, layer: str) -> list[tarfile.TarInfo]:
        with tarfile.open(self.file) as archive, tarfile.open(fileobj=archive.extractfile(layer)) as files:
            return files.getmembers()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
