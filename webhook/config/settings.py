"""The webhook's configuration: one frozen value, read from YAML and validated once; unknown keys are refused."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal, cast

import msgspec
from msgspec import Meta

from kubeyaml.reader import BadYAML, read_one
from pinning.contract import GATE_CPU_MANAGER, GATE_SIDECAR, SIDECAR_CPU, SIDECAR_MEMORY
from pinning.errors import BadContract, BadQuantity
from pinning.pods.quantity import RawQuantity, parse_quantity
from webhook.config.errors import explain

GATES = frozenset({GATE_SIDECAR, GATE_CPU_MANAGER})
KUBEVIRT_ACCOUNTS = ("kubevirt-apiserver", "kubevirt-controller", "kubevirt-handler", "kubevirt-operator")
Count = Annotated[int, Meta(ge=1, le=8192)]
# Name of an extended resource, or a glob for such names; the longest name has 317 characters.
Pattern = Annotated[str, Meta(min_length=1, max_length=317)]


class _Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Base class for the parts of the configuration."""


class SidecarResources(_Frozen, frozen=True):
    """Requests and limits for sidecars that state none; the defaults are KubeVirt's for hook sidecars."""

    cpu: RawQuantity = SIDECAR_CPU
    memory: RawQuantity = SIDECAR_MEMORY


class GateResources(_Frozen, frozen=True):
    """Requests and limits of the gate container, in pods whose containers have CPU or memory amounts."""

    cpu: RawQuantity = "200m"
    memory: RawQuantity = "64Mi"


class NodeShape(_Frozen, frozen=True):
    """One kind of node, for the checks of `smt-policy` require and isolate, and of `numa-memory` bind."""

    name: str
    cores: Count  # number of physical cores
    threads_per_core: Count = 1
    reserved_cores: Annotated[int, Meta(ge=0)] = 1
    numa_memory: RawQuantity | None = None  # memory of its largest NUMA node; None: not checked

    @property
    def free_cores(self) -> int:
        """Physical cores that an empty node of this kind can assign."""
        return self.cores - self.reserved_cores


class KubeVirt(_Frozen, frozen=True):
    """Settings of KubeVirt in this cluster, which KubeVirt's own webhooks read from the KubeVirt object."""

    service_accounts: tuple[str, ...] = KUBEVIRT_ACCOUNTS  # names of service accounts, in any namespace
    architecture: Literal["amd64", "arm64", "s390x"] = "amd64"
    rollout_strategy: Literal["LiveUpdate", "Stage"] = "LiveUpdate"
    max_cpu_sockets: Count | None = None
    cpu_request: RawQuantity = "100m"
    # Whether KubeVirt's feature gate AlignCPUs is on, and the KubeVirt object has the even-parity annotation.
    even_parity: bool = False


class Settings(_Frozen, frozen=True):
    """Every setting of the webhook."""

    feature_gates: str = msgspec.field(name="feature-gates", default=f"{GATE_SIDECAR},{GATE_CPU_MANAGER}")
    sidecar_limits: Literal["launcher", "claims", "off"] = "launcher"
    sidecar_resources: SidecarResources = SidecarResources()
    isolated_cores: bool = True  # count the cores of `isolate` in corepin.io/isolated-cores
    whole_cores: bool = True  # count those of `require` in corepin.io/whole-cores, unless `threads` is None
    # Count the CPUs of `numa-policy: single` in corepin.io/numa-cpus.
    numa_cpus: bool = msgspec.field(name="numaCPUs", default=False)
    # Count the CPUs that `device-policy: require` takes near devices, except for device resources that match
    # `near_ignore`.
    near_cpus: bool = msgspec.field(name="nearCPUs", default=False)
    near_ignore: Annotated[tuple[Pattern, ...], Meta(max_length=100)] = ()
    gate: bool = False  # delay pods with claims that must fit until their CPUs are assigned
    gate_image: str = ""
    gate_resources: GateResources = GateResources()
    required_plugins: bool = False  # make NRI's default validator require the agent's plugin for pods
    node_shapes: tuple[NodeShape, ...] = ()
    kube_virt: KubeVirt = msgspec.field(name="kubevirt", default=KubeVirt())

    @property
    def gates(self) -> frozenset[str]:
        """The feature gates that are on."""
        return _words(self.feature_gates)

    @property
    def threads_per_core(self) -> tuple[int, ...]:
        """Threads per core of every node shape, configured or watched; empty if there is none."""
        return tuple(shape.threads_per_core for shape in self.node_shapes)

    @property
    def threads(self) -> int | None:
        """The threads per core of all node shapes; None if they differ or there is no shape."""
        shapes = self.node_shapes
        if len(shapes) == 1:  # the case of most clusters; a review reads this several times
            return shapes[0].threads_per_core
        found = {shape.threads_per_core for shape in shapes}
        return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=8)  # because it is called for every review
def _words(listed: str) -> frozenset[str]:
    return frozenset(word.strip() for word in listed.split(",") if word.strip())


def load_settings(document: bytes) -> Settings:
    """Read the configuration file; raise BadContract naming key, value and remedy. An empty file means defaults."""
    settings = _convert(parse_yaml(document, "configuration"))
    unknown = settings.gates - GATES
    if unknown:
        raise BadContract(
            f"feature-gates: {', '.join(sorted(unknown))} is unknown; known are {', '.join(sorted(GATES))}"
        )
    for name, value in (
        ("sidecarResources.cpu", settings.sidecar_resources.cpu),
        ("sidecarResources.memory", settings.sidecar_resources.memory),
        ("gateResources.cpu", settings.gate_resources.cpu),
        ("gateResources.memory", settings.gate_resources.memory),
        ("kubevirt.cpuRequest", settings.kube_virt.cpu_request),
        *((f"nodeShapes[{shape.name}].numaMemory", shape.numa_memory) for shape in settings.node_shapes),
    ):
        if value is not None:
            _require_amount(name, value)
    _require_image(settings)
    _require_unlike(settings.node_shapes)
    for shape in settings.node_shapes:
        if shape.free_cores < 1:
            problem = f"reservedCores {shape.reserved_cores} of {shape.cores} cores leave none: reserve fewer"
            raise BadContract(f"nodeShapes[{shape.name}]: {problem}")
    return settings


def parse_yaml(document: bytes, what: str) -> object:
    """Return the one YAML document of a file; raise BadContract with the invalid line."""
    try:
        return cast("object", read_one(document))
    except BadYAML as error:
        raise BadContract(f"{what} is not YAML: {error}") from error


def _convert(parsed: object) -> Settings:
    given = {} if parsed is None else parsed
    if isinstance(given, dict) and given.get("sidecarLimits") is False:
        given = {**given, "sidecarLimits": "off"}  # YAML 1.1 reads a bare `off` as false
    try:
        return msgspec.convert(given, Settings)
    except msgspec.ValidationError as error:
        raise BadContract(f"configuration: {explain(error, given, Settings)}") from error


def _require_image(settings: Settings) -> None:
    """Raise BadContract for a gate without a valid image, because the API server would refuse every pod with it."""
    example = "write corepin's image as your nodes pull it, e.g. gateImage: registry.example/corepin:0.1.0"
    if settings.gate and not settings.gate_image:
        raise BadContract(f"gate: it is on, and gateImage is not set: {example}")
    if settings.gate_image and settings.gate_image.split() != [settings.gate_image]:
        raise BadContract(f"gateImage: {settings.gate_image[:60]!r} has blanks: {example}")


def _require_unlike(shapes: tuple[NodeShape, ...]) -> None:
    """Raise BadContract for two node shapes with one name, because refusals of pods name the shape."""
    first: dict[str, int] = {}
    for at, shape in enumerate(shapes):
        if shape.name in first:
            problem = f"{shape.name!r} is the name of nodeShapes[{first[shape.name]}] too"
            raise BadContract(f"nodeShapes[{at}].name: {problem}: give each kind of node a name of its own")
        first[shape.name] = at


def _require_amount(name: str, value: RawQuantity) -> None:
    try:
        amount = parse_quantity(value)
    except BadQuantity as error:
        raise BadContract(f"{name}: {error}") from error
    if amount <= 0:
        raise BadContract(f"{name}: {value} must be more than 0")
