"""Ask the API server through the user's kubeconfig, or the account of the pod in which the command runs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from corepin.errors import CommandFailed
from pinning.errors import BadJSON
from pinning.json_text import parse_json

if TYPE_CHECKING:
    import argparse

USER_AGENT: Final = "corepin"  # as audit logs name the command
TIMEOUT_SECONDS: Final = 10
DEFAULT_KUBECONFIG: Final = "~/.kube/config"
DEFAULT_NAMESPACE: Final = "default"
OK, NOT_FOUND = 200, 404
OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NotFound(CommandFailed):
    """The API server has no such object, or knows no such kind."""


def add_context_flag(parser: argparse._ActionsContainer) -> None:
    """Add the flag that names a cluster of the kubeconfig."""
    parser.add_argument("--context", metavar="NAME", help="a context of the kubeconfig; default: the current")


def get(path: str, what: str, context: str | None = None, **query: str) -> Any:
    """Return what the API server has at a path; raise CommandFailed, naming `what` was asked for."""
    from kubernetes import client
    from urllib3.exceptions import HTTPError

    with client.ApiClient(kube_settings(context)) as api:
        api.user_agent = USER_AGENT
        headers = {"Accept": "application/json"}
        request = api.param_serialize(
            "GET",
            path,
            query_params=list(query.items()),
            header_params=headers,
            auth_settings=["BearerToken"],
        )
        try:
            answer = api.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
            answer.read()
        except HTTPError as error:
            raise CommandFailed(f"the API server is out of reach: {error}") from error
    if answer.status != OK:
        problem = NotFound if answer.status == NOT_FOUND else CommandFailed
        raise problem(f"{what}: the API server answered {answer.status} ({answer.reason})")
    try:
        return parse_json(answer.data)
    except BadJSON as error:
        raise CommandFailed(f"{what}: the API server's answer cannot be read: {error}") from error


def current_namespace(context: str | None = None) -> str:
    """Return the namespace that the kubeconfig's context names, or the pod's own, else `default`."""
    from kubernetes import config

    if is_in_a_pod():
        with suppress(OSError):
            return OWN_NAMESPACE.read_text().strip()
        return DEFAULT_NAMESPACE
    try:
        contexts, current = config.list_kube_config_contexts(_kubeconfig())  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise _no_cluster(error) from error
    named = next((it for it in contexts if it["name"] == context), current)
    return named["context"].get("namespace") or DEFAULT_NAMESPACE


def kube_settings(context: str | None) -> Any:
    """Return where the API server is and who asks; nothing is kept for other calls."""
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        if is_in_a_pod():
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                _kubeconfig(), context=context, client_configuration=settings
            )
    except (config.ConfigException, OSError) as error:
        raise _no_cluster(error) from error
    settings.retries = False  # a server that is out of reach is an error at once
    return settings


def is_in_a_pod() -> bool:
    """Say whether the account of this pod is to be used, not a kubeconfig."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def _kubeconfig() -> str:
    return os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG


def _no_cluster(error: Exception) -> CommandFailed:
    return CommandFailed(f"no cluster can be asked ({str(error).rstrip('.')}): set KUBECONFIG, or log in")
