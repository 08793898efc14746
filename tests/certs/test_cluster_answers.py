"""Invalid responses to the rotation's requests, from the API server or a proxy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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
