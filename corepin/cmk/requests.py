"""Read and write in the cluster, through the kubeconfig; what the API server refuses is an error with its status."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from corepin.errors import CommandFailed
from corepin.node.kube_api import USER_AGENT, kube_settings
from pinning.errors import BadJSON
from pinning.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_SECONDS: Final = 30
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
BAD: Final = 400  # status codes from here on are refusals


@contextmanager
def kube_client() -> Iterator[Any]:
    """Yield the client of the cluster; raise CommandFailed where none can be asked."""
    from kubernetes import client

    with client.ApiClient(kube_settings(None)) as api:
        api.user_agent = USER_AGENT
        yield api


class Answered(CommandFailed):
    """The API server refused a request; the message is its own."""

    def __init__(self, asked: str, status: int, message: str) -> None:
        super().__init__(f"{asked}: the API server answered {status}: {message}")
        self.status = status


def send(api: Any, method: str, path: str, body: Any = None, content_type: str = JSON) -> Any:
    """Return what the API server answers to one request, decoded; raise Answered or CommandFailed."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    headers = {"Accept": JSON, "Content-Type": content_type}
    asked = api.param_serialize(method, path, header_params=headers, body=body, auth_settings=["BearerToken"])
    try:
        response = api.call_api(*asked, _request_timeout=TIMEOUT_SECONDS)
        text = response.read()
    except ApiException as error:
        raise CommandFailed(f"{method} {path}: {error.reason}") from error
    except HTTPError as error:
        raise CommandFailed(f"the API server is out of reach: {error}") from error
    content = _decoded(text)
    if response.status >= BAD:
        message = content.get("message", "") if isinstance(content, dict) else ""
        raise Answered(f"{method} {path.partition('?')[0]}", response.status, message or response.reason)
    return content


def _decoded(text: bytes) -> Any:
    try:
        return parse_json(text)
    except BadJSON:
        return None
