"""API objects of a rotation: one Secret, the caBundles of named webhook configurations, and events.

It uses the lowest level of the `kubernetes` package, which supports kubeconfigs and projected tokens and returns plain
JSON. Every write has the resourceVersion that was read, so that a concurrent change raises `Conflict` and is never
overwritten.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from kubernetes import config
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration as ClientConfiguration
from urllib3.exceptions import HTTPError

from certs.material import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
JSON: Final = "application/json"
TIMEOUT_SECONDS: Final = 15
NOT_FOUND: Final = 404
CONFLICT: Final = 409
KINDS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"


class ClusterError(Exception):
    """A request to the API server failed; the message has the request and the reason."""


class Conflict(ClusterError):
    """Another writer changed the object since it was read."""


class Missing(ClusterError):
    """The requested object does not exist."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A webhook configuration, with the caBundle of each of its webhooks, in order."""

    kind: str
    name: str
    version: str
    bundles: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Keys and annotations to write into the Secret; None removes one."""

    data: Mapping[str, bytes | None]
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event about the Secret; a warning needs an operator's attention."""

    reason: str
    message: str
    is_warning: bool = False


class Cluster(Protocol):
    """Access to the API objects of a rotation."""

    def secret(self) -> Secret:
        """Return the Secret with the certificates."""
        ...

    def configurations(self) -> tuple[Configuration, ...]:
        """Return the named configurations that exist."""
        ...

    def write_secret(self, change: Change, version: str) -> None:
        """Change the Secret; raise Conflict if it has another version now."""
        ...

    def write_bundles(self, configuration: Configuration, bundles: Mapping[int, bytes]) -> None:
        """Replace the caBundles of entries; raise Conflict if the configuration has changed since it was read."""
        ...

    def record(self, event: Event) -> None:
        """Create an event about the Secret."""
        ...


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the objects of a rotation."""

    namespace: str
    secret: str
    configurations: tuple[str, ...]


def client(environ: Mapping[str, str] = os.environ) -> ApiClient:
    """Return a client with the pod's account; with the kubeconfig if KUBECONFIG is set, or outside of a pod."""
    settings = ClientConfiguration()
    try:
        if "KUBERNETES_SERVICE_HOST" in environ and "KUBECONFIG" not in environ:
            config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(environ.get("KUBECONFIG"), client_configuration=settings)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise ClusterError(
            f"no cluster can be asked ({str(error).rstrip('.')}): set KUBECONFIG, or run in a pod"
        ) from error
    settings.retries = False  # the loop retries after reading the objects again
    api = ApiClient(settings)
    api.user_agent = "corepin-certs"  # name in audit logs, and of the field manager
    return api


class KubeCluster:
    """Access to the API objects of a rotation in a cluster (interface `Cluster`)."""

    def __init__(self, api: ApiClient, names: Names) -> None:
        self._api = api
        self._names = names
        self._core = f"/api/v1/namespaces/{names.namespace}"
        self._secret = f"{self._core}/secrets/{names.secret}"
        self._uid = ""

    def secret(self) -> Secret:
        """Return the Secret with the certificates."""
        read = self._send("GET", self._secret)
        metadata = read["metadata"]
        self._uid = metadata.get("uid", "")
        data = {key: _decoded(text) for key, text in (read.get("data") or {}).items()}
        return Secret(data, metadata.get("annotations") or {}, metadata["resourceVersion"])

    def configurations(self) -> tuple[Configuration, ...]:
        """Return the named configurations that exist; a mutating and a validating one may have the same name."""
        found = (self._configuration(kind, name) for name in self._names.configurations for kind in KINDS)
        return tuple(configuration for configuration in found if configuration)

    def _configuration(self, kind: str, name: str) -> Configuration | None:
        try:
            read = self._send("GET", f"{ADMISSION}/{kind}/{name}")
        except Missing:
            return None
        entries = read.get("webhooks") or []
        bundles = tuple(_decoded(entry["clientConfig"].get("caBundle", "")) for entry in entries)
        return Configuration(kind, name, read["metadata"]["resourceVersion"], bundles)

    def write_secret(self, change: Change, version: str) -> None:
        """Change the Secret, if it still has this version."""
        data = {key: _encoded(value) if value is not None else None for key, value in change.data.items()}
        metadata = {"resourceVersion": version, "annotations": dict(change.annotations)}
        self._send("PATCH", self._secret, {"metadata": metadata, "data": data}, MERGE_PATCH)

    def write_bundles(self, configuration: Configuration, bundles: Mapping[int, bytes]) -> None:
        """Replace the caBundles of entries, if the configuration is unchanged since it was read."""
        path = f"{ADMISSION}/{configuration.kind}/{configuration.name}"
        locked = _operation("replace", "/metadata/resourceVersion", configuration.version)
        changes = [
            _operation("add", f"/webhooks/{entry}/clientConfig/caBundle", _encoded(pem))
            for entry, pem in bundles.items()
        ]
        self._send("PATCH", path, [locked, *changes], JSON_PATCH)

    def record(self, event: Event) -> None:
        """Create an event about the Secret."""
        self._send("POST", f"{self._core}/events", _event(event, self._names, self._uid), JSON)

    def _send(self, method: str, path: str, body: object = None, content_type: str = JSON) -> dict[str, Any]:
        headers = {"Accept": JSON, "Content-Type": content_type}
        try:
            request = self._api.param_serialize(
                method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = self._api.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
            content: bytes = response.read()  # type: ignore[no-untyped-call]
        except (HTTPError, OSError) as error:
            raise ClusterError(f"{method} {path}: the API server does not answer: {error}") from error
        except ValueError:  # its message repeats the token
            raise ClusterError(
                f"{method} {path}: the token of the account has a line break, or another character that no HTTP"
                " header may have"
            ) from None
        if response.status >= 300:
            raise _failure(response.status, f"{method} {path}", content)
        return _read(f"{method} {path}", content)


def _read(request: str, content: bytes) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(content)
    # The answer comes from a proxy, or is nested thousands of levels deep.
    except (ValueError, RecursionError) as error:
        raise ClusterError(
            f"{request}: the API server's answer is not JSON that can be read: {error}"
        ) from error
    return answer


def _failure(status: int, request: str, content: bytes) -> ClusterError:
    try:
        message = json.loads(content)["message"]
    except (ValueError, RecursionError, KeyError, TypeError):
        message = content[:200].decode(errors="replace")
    kind = {NOT_FOUND: Missing, CONFLICT: Conflict}.get(status, ClusterError)
    return kind(f"{request}: {status}: {message}")


def _operation(verb: str, path: str, value: str) -> dict[str, str]:
    return {"op": verb, "path": path, "value": value}


def _event(event: Event, names: Names, uid: str) -> dict[str, Any]:
    from datetime import UTC, datetime

    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{names.secret}-", "namespace": names.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Secret",
            "namespace": names.namespace,
            "name": names.secret,
            "uid": uid,
        },
        "type": "Warning" if event.is_warning else "Normal",
        "reason": event.reason,
        "message": event.message[:1024],  # the API server's limit
        "action": "RotateCertificates",
        "eventTime": now,
        "reportingComponent": "corepin-certs",
        "reportingInstance": os.environ.get("HOSTNAME") or "corepin-certs",
    }


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""
