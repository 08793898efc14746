"""SBOM of the image (CycloneDX): the Debian packages and Python distributions in the image's files.

It has no serial number and no time, so that equal images have equal SBOMs.
"""

from __future__ import annotations

import re
import tarfile
from email.parser import HeaderParser
from typing import TYPE_CHECKING, Final, NamedTuple

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from email.message import Message
    from pathlib import Path

_DISTRIBUTION: Final = re.compile(r"(?:\./)?opt/corepin/lib/[^/]+/site-packages/[^/]+\.dist-info/METADATA")
_DEBIAN: Final = re.compile(r"(?:\./)?var/lib/dpkg/status")
NAME: Final = "corepin"


class Part(NamedTuple):
    """One package in an image."""

    url: PackageURL
    license: str  # SPDX expression; empty if the package states none
    requires: frozenset[str]  # names of packages of the same kind


def parts_of(image: Path) -> list[Part]:
    """Return the packages in a Docker archive; a later layer overrides an earlier one."""
    found: dict[str, Part] = {}
    with tarfile.open(image) as archive:
        layers = [member.name for member in archive if member.name.endswith(".tar")]
        for name in layers:
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                found |= {part.url.to_string(): part for part in _in_layer(layer)}
    return [found[url] for url in sorted(found)]


def bill(parts: Iterable[Part], version: str) -> str:
    """Return the SBOM of a version's image as JSON."""
    root = Component(name=NAME, version=version, type=ComponentType.CONTAINER, bom_ref=NAME)
    others = [part for part in parts if part.url.name != NAME]
    components = {(part.url.type, part.url.name): _component(part) for part in others}
    bom = Bom(components=components.values())
    bom.serial_number = bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.metadata.component = root
    bom.register_dependency(root, components.values())
    for part in others:
        wanted = (components.get((part.url.type, name)) for name in part.requires)
        bom.register_dependency(components[part.url.type, part.url.name], filter(None, wanted))
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _component(part: Part) -> Component:
    licenses = [LicenseExpression(part.license)] if part.license else []
    reference = part.url.to_string()
    return Component(
        name=part.url.name, version=part.url.version, purl=part.url, bom_ref=reference, licenses=licenses
    )


def _in_layer(layer: tarfile.TarFile) -> Iterator[Part]:
    for member in layer:
        content = layer.extractfile(member) if member.isreg() else None
        if content and _DISTRIBUTION.fullmatch(member.name):
            yield _distribution(_message(content.read()))
        elif content and _DEBIAN.fullmatch(member.name):
            records = content.read().split(b"\n\n")
            yield from (_debian(_message(record)) for record in records if record.strip())


def _message(content: bytes) -> Message:
    return HeaderParser().parsestr(content.decode())


def _distribution(metadata: Message) -> Part:
    """Return a Python distribution with the requirements that apply here, without extras."""
    wanted = [Requirement(text) for text in metadata.get_all("Requires-Dist") or ()]
    needed = [it for it in wanted if it.marker is None or it.marker.evaluate({"extra": ""})]
    url = PackageURL("pypi", name=canonicalize_name(metadata["Name"]), version=metadata["Version"])
    return Part(
        url, metadata["License-Expression"] or "", frozenset(canonicalize_name(it.name) for it in needed)
    )


def _debian(record: Message) -> Part:
    depends = f"{record['Depends'] or ''}, {record['Pre-Depends'] or ''}"
    names = frozenset(re.findall(r"(?:^|[,|]\s*)([a-z0-9][a-z0-9.+-]+)", depends))
    qualifiers = {"arch": record["Architecture"], "distro": "bookworm"}
    return Part(PackageURL("deb", "debian", record["Package"], record["Version"], qualifiers), "", names)
