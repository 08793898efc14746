"""API server access of corepin's client by kubeconfig or by a pod's service account."""

from __future__ import annotations

import json
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme

from apiserver.access import Access
from apiserver.errors import Unavailable
from corepin.cli import main
from corepin.errors import CommandFailed
from corepin.node.kube_access import cluster_access
from corepin.node.kube_api import current_namespace

AUTHORITY = trustme.CA()


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, user: dict[str, Any], **cluster: Any) -> None:
    """Write a kubeconfig and let KUBECONFIG name it."""
    AUTHORITY.cert_pem.write_to_path(folder / "ca.crt")
    trusted = {"server": "https://api.test:6443", "certificate-authority": str(folder / "ca.crt"), **cluster}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "one", "cluster": trusted},
            {"name": "two", "cluster": {**trusted, "server": "https://two"}},
        ],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": it, "context": {"cluster": it, "user": "me"}} for it in ("one", "two")],
        "current-context": "one",
    }
    (folder / "config").write_text(json.dumps(content))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))


def test_token_and_context_of_the_kubeconfig_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """URL, token and context of the kubeconfig are used, another context too."""
    use(monkeypatch, tmp_path, {"token": "secret"})
    access = cluster_access()
    assert (access.url, access.headers()) == ("https://api.test:6443", {"authorization": "Bearer secret"})
    assert cluster_access("two").url == "https://two"
    assert access.context().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("token", ["secret\nline", "secret\n", "secr\u00e9t"])
def test_token_that_no_header_may_have_is_not_printed(
    token: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A token that HTTP cannot send is an error that does not show it."""
    use(monkeypatch, tmp_path, {"token": token})
    with pytest.raises(Unavailable, match="the kubeconfig's token has a line break") as failed:
        cluster_access().headers()
    assert "secr" not in str(failed.value)


def test_certificate_of_the_user_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A client certificate is used without a token; an unreadable one is an error."""
    pair = AUTHORITY.issue_cert("localhost", common_name="me")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "me.crt")
    pair.private_key_pem.write_to_path(tmp_path / "me.key")
    use(
        monkeypatch,
        tmp_path,
        {"client-certificate": str(tmp_path / "me.crt"), "client-key": str(tmp_path / "me.key")},
    )
    access = cluster_access()
    assert access.headers() == {}
    assert access.context().check_hostname
    (tmp_path / "me.key").write_text("damaged")
    with pytest.raises(Unavailable, match="certificates cannot be read"):
        access.context()


def test_plugin_is_asked_for_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An exec plugin of the kubeconfig, as cloud providers have, provides the token."""
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "fresh"},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(json.dumps(answer))})"],
        "interactiveMode": "Never",
    }
    use(monkeypatch, tmp_path, {"exec": plugin})
    assert cluster_access().headers() == {"authorization": "Bearer fresh"}


def test_insecure_skip_tls_verify_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The certificate is not verified if the kubeconfig says insecure-skip-tls-verify."""
    use(monkeypatch, tmp_path, {"token": "x"}, **{"insecure-skip-tls-verify": True})
    context = cluster_access().context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_pod_uses_its_own_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod uses its service account if no kubeconfig is given."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert isinstance(cluster_access(), Access)


def test_context_is_one_of_a_kubeconfig_in_a_pod_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a pod --context selects a cluster of ~/.kube/config, never the pod's own cluster."""
    (tmp_path / ".kube").mkdir()
    use(monkeypatch, tmp_path, {"token": "secret"})
    (tmp_path / "config").rename(tmp_path / ".kube" / "config")
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert cluster_access("two").url == "https://two"
    assert current_namespace("two") == "default"
    assert isinstance(cluster_access(), Access)
    with pytest.raises(CommandFailed, match="no cluster can be asked"):
        cluster_access("three")


GOOD: dict[str, Any] = {
    "current-context": "x",
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://api.test:6443"}}],
    "users": [{"name": "u", "user": {}}],
}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"a: [", id="syntax"),
        pytest.param(b"a:\n\t- b", id="tab"),
        pytest.param(b"\xff\xfe\x00", id="binary"),
        pytest.param(b"5", id="number"),
        pytest.param(b"[1]", id="list"),
        pytest.param({**GOOD, "users": 5}, id="users"),
        pytest.param(
            {**GOOD, "users": [{"name": "u", "user": {"auth-provider": {"name": "gcp"}}}]}, id="provider"
        ),
        pytest.param({**GOOD, "clusters": [{"name": "c", "cluster": {"server": 5}}]}, id="server"),
        pytest.param({**GOOD, "clusters": [{"name": "c", "cluster": {"server": "https://[::1"}}]}, id="URL"),
    ],
)
def test_damaged_kubeconfig_is_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any
) -> None:
    """A damaged kubeconfig is an error in one line, whichever exception its parser raises."""
    file = tmp_path / "config"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    monkeypatch.setenv("KUBECONFIG", str(file))
    for command in (["why", "web"], ["map", "--node", "n1"]):
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"no cluster can be asked (the kubeconfig {file} is damaged: " in line


def test_missing_kubeconfig_and_silent_server_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error for a missing kubeconfig names its path, and for an unreachable API server its URL."""
    file = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert main(["why", "web"]) == 2
    missing = f"no cluster can be asked (the kubeconfig {file} does not exist): set KUBECONFIG, or log in"
    assert missing in capsys.readouterr().err
    server = "https://127.0.0.1:1"
    file.write_text(json.dumps({**GOOD, "clusters": [{"name": "c", "cluster": {"server": server}}]}))
    assert main(["why", "web"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"corepin why: the API server is out of reach: {server}: ")
    assert error.endswith(": check that this address is right, and that this machine reaches it\n")


def test_wrong_type_in_a_kubeconfig_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value of the wrong type in a kubeconfig is an error that names the file."""
    (tmp_path / "config").write_text("hello world")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert main(["why", "web"]) == 2
    assert f"{tmp_path / 'config'} is damaged: a value in it has the wrong type (" in capsys.readouterr().err


def test_namespace_of_a_context_may_be_written_as_a_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A namespace that YAML reads as a number is used as the namespace's name."""
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": 5}}]
    (tmp_path / "config").write_text(json.dumps({**GOOD, "contexts": contexts}))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert current_namespace() == "5"
