"""Requests to the API server with the kubeconfig; a refusal raises an error with its status code."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from corepin.errors import CommandFailed
from corepin.node.kube_access import cluster_client
from corepin.node.kube_api import read_object
from pinning.errors import BadJSON

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

TIMEOUT_SECONDS: Final = 30
JSON: Final = "application/json"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
NOT_FOUND: Final = 404
BAD: Final = 400  # lowest HTTP status of a refusal


@contextmanager
def kube_client() -> Iterator[httpx.Client]:
    """Yield a client of the cluster; raise CommandFailed without access."""
    with cluster_client(None, TIMEOUT_SECONDS) as client:
        yield client


class Answered(CommandFailed):
    """The API server refused a request; the message is the server's."""

    def __init__(self, asked: str, status: int, message: str) -> None:
        super().__init__(f"{asked}: the API server answered {status}: {message}")
        self.status = status


def send(
    api: httpx.Client,
    method: str,
    path: str,
    body: Any = None,
    content_type: str = JSON,
    accept: str = JSON,
) -> Any:
    """Return the decoded answer to a request; raise Answered or CommandFailed."""
    headers = {"accept": accept, "content-type": content_type}
    content = None if body is None else json.dumps(body).encode()
    response = api.request(method, path, content=content, headers=headers)
    answer = _decoded(response.content)
    if response.status_code >= BAD:
        message = answer.get("message", "") if isinstance(answer, dict) else ""
        reason = message or response.reason_phrase
        raise Answered(f"{method} {path.partition('?')[0]}", response.status_code, reason)
    return answer


def find(api: httpx.Client, path: str) -> Any:
    """Return an object; None if it does not exist."""
    try:
        return send(api, "GET", path)
    except Answered as error:
        if error.status != NOT_FOUND:
            raise
        return None


def _decoded(text: bytes) -> Any:
    try:
        return read_object(text)
    except BadJSON:
        return None
