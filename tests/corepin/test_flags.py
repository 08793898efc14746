"""Parsing of HOST:PORT in flags, and empty node names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corepin.cli import kubectl, main
from corepin.errors import CommandFailed
from corepin.flags import address, optional_address, remote_address


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(":8081", ("", 8081), id="every interface"),
        pytest.param("127.0.0.1:0", ("127.0.0.1", 0), id="any port"),
        pytest.param("a.b:8443", ("a.b", 8443), id="name"),
        pytest.param("[::1]:65535", ("::1", 65535), id="IPv6"),
    ],
)
def test_address_is_read(text: str, found: tuple[str, int]) -> None:
    """An address is read as host, which may be empty, and port."""
    assert address("--listen", text, ":1") == optional_address("--listen", text, ":1") == found


@pytest.mark.parametrize(
    "text",
    ["8081", "host:", "host:http", ":70000", ":0000070000", ":" + "9" * 5000, "a:\u00b2", "a:\u0663"],
)
def test_other_texts_are_refused(text: str) -> None:
    """Any other text is refused with flag, value and example."""
    with pytest.raises(
        CommandFailed, match=r"^--listen: .* is not HOST:PORT: write for example :8081, or off$"
    ):
        optional_address("--listen", text, ":8081")


@pytest.mark.parametrize("text", ["off", ""])
def test_listener_may_be_off(text: str) -> None:
    """A listener may be `off` only where the flag allows it."""
    assert optional_address("--listen", text, ":1") is None
    with pytest.raises(CommandFailed, match=r"write for example :1$"):
        address("--listen", text, ":1")


@pytest.mark.parametrize("text", [":1", "a:0"])
def test_where_others_listen_is_a_whole_address(text: str) -> None:
    """An address to connect to needs a host and a port."""
    assert remote_address("--replicas", "[::1]:1", "a:1") == ("::1", 1)
    with pytest.raises(CommandFailed, match=r"--replicas: .* write for example a:1$"):
        remote_address("--replicas", text, "a:1")


@pytest.mark.parametrize(
    ("command", "verb"),
    [
        pytest.param(main, "map", id="another machine's map would be this one's"),
        pytest.param(kubectl, "map", id="plugin"),
        pytest.param(kubectl, "doctor", id="doctor of the plugin"),
    ],
)
def test_empty_name_of_a_node_is_no_missing_flag(
    command: Callable[[list[str]], int], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty name is refused, because an unset shell variable gives one."""
    with pytest.raises(SystemExit, match="2"):
        command([verb, "--node", ""])
    assert "--node: it is empty: write a name, or leave the flag out" in capsys.readouterr().err
