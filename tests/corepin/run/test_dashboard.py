"""`corepin dashboard`: the errors for unusable flags and clusters."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from corepin import cli

LOCAL = "127.0.0.1:0"


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that a failing command prints."""
    assert cli.main(["dashboard", *arguments]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("{"))
    return line


@pytest.fixture
def _kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set a kubeconfig whose cluster is never contacted."""
    content = (
        '{"apiVersion": "v1", "kind": "Config", "current-context": "a", "users": [{"name": "a", "user": {}}],'
        ' "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],'
        ' "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]}'
    )
    (tmp_path / "config").write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))


@pytest.mark.usefixtures("_kubeconfig")
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", ""])  # noqa: S104 it is refused
def test_it_listens_on_loopback_only(capsys: pytest.CaptureFixture[str], host: str) -> None:
    """An address other than loopback is refused with the alternative."""
    assert "listen on 127.0.0.1, and reach it by `kubectl port-forward`" in failure(
        capsys, "--listen", f"{host}:8084"
    )


@pytest.mark.usefixtures("_kubeconfig")
def test_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A port that is taken is an error in one line, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in failure(capsys, "--listen", f"127.0.0.1:{port}")


def test_without_a_cluster_it_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a kubeconfig the error names the path that was tried and the remedy."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "set KUBECONFIG, or log in" in failure(capsys, "--listen", LOCAL)


@pytest.mark.usefixtures("_kubeconfig")
def test_address_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Anything but HOST:PORT is refused with an example."""
    assert "127.0.0.1:8084" in failure(capsys, "--listen", "here")
