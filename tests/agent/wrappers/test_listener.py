"""The listening socket in the install directory."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from agent.errors import Refused
from agent.wrappers.server import listen
from tests.agent.wrappers.scene import Scene

NAME = "cmk.sock"


def test_socket_has_mode_0666_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    """The directory is created, the socket has mode 0666 whatever the umask, and no temporary file stays."""
    folder = tmp_path / ("deep/" * 60) / "opt/bin"
    before = os.umask(0o077)
    try:
        listener = listen(folder, NAME)
    finally:
        os.umask(before)
    try:
        assert os.listdir(folder) == [NAME]  # noqa: PTH208 names alone
        assert stat.filemode((folder / NAME).lstat().st_mode) == "srw-rw-rw-"
        assert listener.is_in_place()
    finally:
        listener.close()


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "socket"])
def test_what_stands_in_its_place_is_replaced_and_not_followed(tmp_path: Path, kind: str) -> None:
    """A file, link or socket at the path is replaced; a link's target is not changed."""
    target = tmp_path / "secret"
    target.write_text("secret")
    target.chmod(0o600)
    place = tmp_path / "bin" / NAME
    place.parent.mkdir()
    if kind == "file":
        place.write_text("x")
    elif kind == "socket":
        listen(place.parent, NAME).close()
    else:
        place.symlink_to(target if kind == "link" else tmp_path / "nowhere")
    listener = listen(place.parent, NAME)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(place))
        assert not place.is_symlink()
        assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("secret", 0o600)
        assert not (tmp_path / "nowhere").exists()
    finally:
        listener.close()


def test_replaced_socket_is_detected(tmp_path: Path) -> None:
    """`is_in_place` is false after another socket, or a link, replaced it."""
    first = listen(tmp_path, NAME)
    second = listen(tmp_path, NAME)
    try:
        assert (first.is_in_place(), second.is_in_place()) == (False, True)
        (tmp_path / NAME).rename(tmp_path / "moved")
        (tmp_path / NAME).symlink_to("moved")
        assert not second.is_in_place()
    finally:
        first.close()
        second.close()


def test_replaced_directory_is_detected(tmp_path: Path) -> None:
    """`is_in_place` is false after the directory was moved away, because containers no longer find the socket in it."""
    folder = tmp_path / "bin"
    first = listen(folder, NAME)
    try:
        folder.rename(tmp_path / "moved")
        assert not first.is_in_place()
        second = listen(folder, NAME)
        try:
            assert (first.is_in_place(), second.is_in_place()) == (False, True)
        finally:
            second.close()
    finally:
        first.close()


def test_an_impossible_directory_is_refused(tmp_path: Path) -> None:
    """The error names the directory and the flag `--cmk-install-dir`."""
    (tmp_path / "file").write_text("")

    with pytest.raises(
        Refused, match=r"no socket in .*file/x: Not a directory; name another --cmk-install-dir"
    ):
        listen(tmp_path / "file" / "x", NAME)


def test_reset_passes_over_what_a_container_put_in_place_of_the_socket(tmp_path: Path) -> None:
    """A reset ignores a folder that a container created in place of the socket."""
    scene = Scene(tmp_path)
    (tmp_path / "install" / NAME / "full").mkdir(parents=True)
    scene.keeper.reset()
    (tmp_path / "install" / NAME / "full").rmdir()
    (tmp_path / "install" / NAME).rmdir()
    scene.keeper.reset()
