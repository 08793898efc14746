"""The image's SBOM (CycloneDX)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from scripts.release.sbom import bill, parts_of
from tests.release.images import EPOCH, STATUS, distribution, write_image

NEEDS = "License-Expression: MIT\nRequires-Dist: lower-one>=1\nRequires-Dist: absent; extra == 'x'"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the bill of a small image."""
    files = {
        **distribution("Upper.One", "2.0", NEEDS),
        **distribution("lower_one", "1.0", ""),
        **distribution("corepin", "1.2.3", "Requires-Dist: Upper.One"),
        "var/lib/dpkg/status": STATUS,
    }
    image = write_image(tmp_path_factory.mktemp("sbom") / "image.tar", when=EPOCH, host="a", **files)
    return bill(parts_of(image), "1.2.3")


def test_bill_follows_the_schema(text: str) -> None:
    """CycloneDX's strict validator accepts the bill."""
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_every_package_is_listed_with_what_it_needs(text: str) -> None:
    """Python and Debian packages have package URLs, licenses if stated, and their dependencies."""
    document: dict[str, Any] = json.loads(text)
    licenses = {it["purl"]: it.get("licenses") for it in document["components"]}
    needs = {it["ref"]: it.get("dependsOn", []) for it in document["dependencies"]}

    assert licenses == {
        "pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=bookworm": None,
        "pkg:deb/debian/libgcc-s1@12.2.0-14?arch=amd64&distro=bookworm": None,
        "pkg:pypi/lower-one@1.0": None,
        "pkg:pypi/upper-one@2.0": [{"expression": "MIT"}],
    }
    assert needs["pkg:pypi/upper-one@2.0"] == ["pkg:pypi/lower-one@1.0"]
    assert needs["pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=bookworm"] == [
        "pkg:deb/debian/libgcc-s1@12.2.0-14?arch=amd64&distro=bookworm"
    ]
    assert needs["corepin"] == sorted(licenses)
    assert (document["metadata"]["component"]["name"], document["metadata"]["component"]["version"]) == (
        "corepin",
        "1.2.3",
    )


def test_bill_has_neither_number_nor_time(text: str) -> None:
    """The SBOM has neither serial number nor time, so that equal images have equal SBOMs."""
    document = json.loads(text)
    assert "serialNumber" not in document
    assert "timestamp" not in document["metadata"]
