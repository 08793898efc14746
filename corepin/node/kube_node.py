"""Read one node through the user's kubeconfig, or the account of the pod in which the command runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from corepin.errors import CommandFailed
from pinning.contract import STATUS_POOLS, STATUS_TOPOLOGY

if TYPE_CHECKING:
    from collections.abc import Mapping

USER_AGENT = "corepin"  # as audit logs name the command
TIMEOUT_SECONDS = 10
DEFAULT_KUBECONFIG = "~/.kube/config"


@dataclass(frozen=True)
class KubeNode:
    """What the API server shows of a node."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def topology(self) -> str:
        """The machine as the agent published it; raise CommandFailed when it did not."""
        return self._annotation(STATUS_TOPOLOGY)

    @property
    def pools(self) -> str:
        """The sets of the node as the agent published them; raise CommandFailed when it did not."""
        return self._annotation(STATUS_POOLS)

    def _annotation(self, name: str) -> str:
        text = self.annotations.get(name)
        if not text:
            raise CommandFailed(
                f"node {self.name} has no annotation {name}: no corepin agent reports from there"
            )
        return text


def read_node(name: str) -> KubeNode:
    """Return a node; raise CommandFailed with what is missing."""
    return KubeNode(name, **_facts(_ask(name)))


def _facts(node: Any) -> dict[str, Mapping[str, str]]:
    return {
        "annotations": node.metadata.annotations or {},
        "allocatable": node.status.allocatable or {},
        "labels": node.metadata.labels or {},
    }


def _ask(name: str) -> Any:
    from kubernetes import client
    from urllib3.exceptions import HTTPError

    try:
        with client.ApiClient(_settings()) as api:
            api.user_agent = USER_AGENT
            return client.CoreV1Api(api).read_node(name, _request_timeout=TIMEOUT_SECONDS)
    except client.ApiException as error:
        answer = f"the API server answered {error.status} ({error.reason})"
        raise CommandFailed(f"node {name}: {answer}") from error
    except HTTPError as error:
        raise CommandFailed(f"the API server is out of reach: {error}") from error


def _settings() -> Any:
    """Return where the API server is and who asks; nothing is kept for other calls."""
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            file = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
            config.load_kube_config(file, client_configuration=settings)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise CommandFailed(
            f"no cluster can be asked ({str(error).rstrip('.')}): set KUBECONFIG, or log in"
        ) from error
    settings.retries = False  # a server that is out of reach is an error at once
    return settings
