"""The pictures of the README."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.pictures import MAP, PAGE, drawn


def test_the_map_is_drawn_so() -> None:
    """The checked-in picture equals what `make pictures` draws by `corepin map`."""
    assert MAP.read_text(encoding="utf-8") == drawn()


def test_the_map_shows_every_line() -> None:
    """The picture has a title, and text as characters for screen readers."""
    root = ElementTree.fromstring(drawn())  # noqa: S314 - our own
    text = "\n".join("".join(it.itertext()) for it in root.iter("{http://www.w3.org/2000/svg}text"))
    assert root[0].text
    for words in ("$ kubectl corepin map --node node-1", "socket 0", "shop/web/main", "idle (", "reserved"):
        assert words in text


def test_the_readme_shows_both() -> None:
    """Each picture exists, and the README shows it."""
    readme = Path("README.md").read_text(encoding="utf-8")
    for picture in (MAP, PAGE):
        assert picture.is_file()
        assert f"]({picture})" in readme
