"""Partial types of the Kubernetes and KubeVirt objects that corepin reads, in the API's spelling.

They are typed dictionaries, as JSON and YAML decode to; the edges check the types once while decoding. Every key
may be absent or null, because people and controllers write both; unknown keys are ignored.
"""

from __future__ import annotations

from typing import TypedDict

from pinning.pods.quantity import RawQuantity

ResourceList = dict[str, RawQuantity]


class NamedClaim(TypedDict, total=False):
    """A claim of the pod that a container names; without `request` all of the claim's requests."""

    name: str
    request: str | None


class ResourceRequirements(TypedDict, total=False):
    """Requests and limits of a container or, at pod level, of a pod."""

    requests: ResourceList | None
    limits: ResourceList | None
    claims: list[NamedClaim] | None


class EnvVar(TypedDict, total=False):
    """One environment variable; `value` is absent when it comes from elsewhere."""

    name: str
    value: str | None


class VolumeMount(TypedDict, total=False):
    """One mount of a container."""

    name: str
    mountPath: str
    readOnly: bool | None


class Container(TypedDict, total=False):
    """One container of a pod."""

    name: str
    restartPolicy: str | None
    resources: ResourceRequirements | None
    env: list[EnvVar] | None
    volumeMounts: list[VolumeMount] | None


class Toleration(TypedDict, total=False):
    """One toleration of a pod."""

    key: str | None
    operator: str | None
    value: str | None
    effect: str | None
    tolerationSeconds: int | None


class HostPath(TypedDict, total=False):
    """A file or directory of the node."""

    path: str | None
    type: str | None


class FieldRef(TypedDict, total=False):
    """A field of the pod itself."""

    fieldPath: str | None


class DownwardAPIItem(TypedDict, total=False):
    """A file that shows a field of the pod."""

    path: str | None
    fieldRef: FieldRef | None


class DownwardAPI(TypedDict, total=False):
    """Files that show fields of the pod."""

    items: list[DownwardAPIItem] | None


class TokenProjection(TypedDict, total=False):
    """A file with a token of the pod's service account."""

    path: str | None
    audience: str | None


class ConfigMapProjection(TypedDict, total=False):
    """Files of a ConfigMap."""

    name: str | None


class DownwardAPIProjection(TypedDict, total=False):
    """Files with fields of the pod; which fields is not read."""


class VolumeProjection(TypedDict, total=False):
    """One source of a projected volume; empty for the sources that corepin does not read."""

    serviceAccountToken: TokenProjection | None
    configMap: ConfigMapProjection | None
    downwardAPI: DownwardAPIProjection | None


class Projected(TypedDict, total=False):
    """Files of several sources in one volume."""

    sources: list[VolumeProjection] | None


class Volume(TypedDict, total=False):
    """One volume of a pod, with the sources that corepin or the API server adds, and with mounts of the host."""

    name: str
    hostPath: HostPath | None
    downwardAPI: DownwardAPI | None
    projected: Projected | None


class PodClaim(TypedDict, total=False):
    """A claim of a pod: a ResourceClaim, or a template of which one is made."""

    name: str
    resourceClaimName: str | None
    resourceClaimTemplateName: str | None


class PodClaimStatus(TypedDict, total=False):
    """The ResourceClaim that was made for a claim of a pod."""

    name: str
    resourceClaimName: str | None


class PodOS(TypedDict, total=False):
    """The operating system of a pod's containers."""

    name: str


class PodSpec(TypedDict, total=False):
    """The specification of a pod."""

    automountServiceAccountToken: bool | None
    containers: list[Container] | None
    initContainers: list[Container] | None
    nodeSelector: dict[str, str] | None
    os: PodOS | None
    resourceClaims: list[PodClaim] | None
    resources: ResourceRequirements | None
    restartPolicy: str | None
    runtimeClassName: str | None
    serviceAccount: str | None
    serviceAccountName: str | None
    tolerations: list[Toleration] | None
    volumes: list[Volume] | None


class ObjectMeta(TypedDict, total=False):
    """Metadata of any object."""

    name: str | None
    generateName: str | None
    namespace: str | None
    uid: str | None
    resourceVersion: str | None
    creationTimestamp: str | None
    deletionTimestamp: str | None
    labels: dict[str, str] | None
    annotations: dict[str, str] | None


class Terminated(TypedDict, total=False):
    """The result of a container that has ended."""

    reason: str
    finishedAt: str


class ContainerState(TypedDict, total=False):
    """The state of a container: only its termination is read."""

    terminated: Terminated | None


class ContainerStatus(TypedDict, total=False):
    """The kubelet's status of one container; `allocatedResources` is what it has allocated."""

    name: str
    allocatedResources: ResourceList | None
    state: ContainerState | None
    lastState: ContainerState | None
    ready: bool | None


class PodStatus(TypedDict, total=False):
    """The status of a pod; `allocatedResources` is what the kubelet has allocated to the pod as a whole."""

    phase: str | None
    allocatedResources: ResourceList | None
    containerStatuses: list[ContainerStatus] | None
    initContainerStatuses: list[ContainerStatus] | None
    resourceClaimStatuses: list[PodClaimStatus] | None


class Pod(TypedDict, total=False):
    """A pod, or the template of one (which has no status)."""

    metadata: ObjectMeta | None
    spec: PodSpec | None
    status: PodStatus | None
