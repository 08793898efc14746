"""Normalisation of the image archive, so that two builds of the same sources are equal.

Builders write the time, a random host name and a container id into an image, and new files have the time of their
creation. Normalisation removes these, and keeps the files' contents.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import tarfile
import tempfile
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import IO

# Settings of the container to keep; the others describe the build.
_SETTINGS: Final = ("User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "WorkingDir")
# contains inode numbers; ldconfig creates it again
_LEFT_OUT: Final = frozenset({"var/cache/ldconfig/aux-cache"})
_OF_FILES: Final = ("atime", "ctime", "mtime")


def normalise(built: Path, file: Path, name: str, epoch: int) -> None:
    """Write a normalised copy of a Docker archive, named `name`, without times after `epoch`."""
    with tarfile.open(built) as source, tempfile.TemporaryDirectory(dir=file.parent) as work:
        manifest = _read(source, "manifest.json")[0]
        layers = [_layer(source, layer, Path(work), epoch) for layer in manifest["Layers"]]
        config = _encode(_config(_read(source, manifest["Config"]), [layer.name for layer in layers], epoch))
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        named = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{it.name}.tar" for it in layers]}]
        with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as target:
            for layer in layers:
                with layer.open("rb") as content:
                    _add(target, f"{layer.name}.tar", content, layer.stat().st_size)
            for member, text in ((config_name, config), ("manifest.json", _encode(named))):
                _add(target, member, io.BytesIO(text), len(text))


def compressed(file: Path) -> list[int]:
    """Return the gzipped size of each layer in bytes, as pulled from a registry."""
    with tarfile.open(file) as archive:
        layers = [archive.extractfile(name) for name in _read(archive, "manifest.json")[0]["Layers"]]
        return [_gzipped(layer) for layer in layers if layer]


def _gzipped(content: IO[bytes]) -> int:
    packer = zlib.compressobj(wbits=31)
    size = sum(len(packer.compress(block)) for block in iter(lambda: content.read(1 << 20), b""))
    return size + len(packer.flush())


def _layer(source: tarfile.TarFile, name: str, work: Path, epoch: int) -> Path:
    """Rewrite a layer into a file named by its digest."""
    partial = work / "layer.partial"
    with (
        tarfile.open(fileobj=source.extractfile(name)) as layer,
        tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in layer:
            if member.name not in _LEFT_OUT:
                content = layer.extractfile(member) if member.isreg() else None
                target.addfile(_aged(member, epoch), content)
    with partial.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return partial.rename(work / digest)


def _aged(member: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    member = copy.copy(member)
    member.mtime = min(int(member.mtime), epoch)
    member.pax_headers = {key: text for key, text in member.pax_headers.items() if key not in _OF_FILES}
    return member


def _config(built: dict[str, Any], digests: list[str], epoch: int) -> dict[str, Any]:
    """Return the configuration of an image, without builder and build time."""
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    history = [
        {key: text for key, text in step.items() if key in ("created_by", "empty_layer")}
        | {"created": created}
        for step in built["history"]
    ]
    return {
        "architecture": built["architecture"],
        "os": built["os"],
        "created": created,
        "config": {key: built["config"][key] for key in _SETTINGS if built["config"].get(key)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": history,
    }


def _read(archive: tarfile.TarFile, name: str) -> Any:
    content = archive.extractfile(name)
    if content is None:
        raise ValueError(f"the archive has no {name}")
    return json.load(content)


def _encode(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, content)
