"""Invalid responses to the rotation's requests, from the API server or a proxy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration

from certs.cluster import ClusterError, KubeCluster, Names


class Answering:
    """A client that returns the same response to every request."""

    def __init__(self, status: int, content: bytes) -> None:
        self.status = status
        self.content = content

    def param_serialize(self, *request: str, **_: object) -> tuple[str, ...]:
        """Return the request."""
        return request

    def call_api(self, *_: str, **__: object) -> Any:
        """Return the response."""
        return SimpleNamespace(status=self.status, read=lambda: self.content)


@pytest.mark.parametrize("content", [b"<html>", b"", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("status", [200, 500])
def test_answer_that_is_no_json_is_an_error(status: int, content: bytes) -> None:
    """An answer that is not JSON, or nested too deeply, is an error that names the request, without a traceback."""
    api: Any = Answering(status, content)
    cluster = KubeCluster(api, Names("corepin", "corepin-certs", ()))

    with pytest.raises(ClusterError, match="GET /api/v1/namespaces/corepin/secrets/corepin-certs: "):
        cluster.secret()


@pytest.mark.parametrize("token", ["secret\nline", "secr\u20act"])
def test_token_that_no_header_may_have_is_not_logged(token: str) -> None:
    """A token that HTTP cannot send is an error that does not show it, nor does the error's context."""
    settings = Configuration()
    settings.host, settings.retries = "http://127.0.0.1:1", False
    settings.api_key = {"authorization": f"Bearer {token}"}
    with ApiClient(settings) as api, pytest.raises(ClusterError, match="the token of the account") as failed:
        KubeCluster(api, Names("corepin", "corepin-certs", ())).secret()
    assert "secr" not in str(failed.value).replace("secrets", "")
    assert failed.value.__suppress_context__
