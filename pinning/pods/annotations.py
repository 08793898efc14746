"""Policy annotations of a pod, by scope; the narrower scope wins."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pinning.contract import (
    CONTAINER_SCOPE,
    CORE_TYPE,
    CPU_MANAGER,
    CRANE_CPU_MANAGER,
    DEVICE_POLICY,
    FAMILIES,
    IRQ_POLICY,
    NOISE_POLICY,
    NUMA_MEMORY_POD,
    NUMA_POLICY,
    POD_SCOPE,
    QUOTA_POLICY,
    SHARED_CPUS,
    SINGLE_KEYS,
    SMT_POLICY,
    CoreType,
    CPUPolicy,
    DevicePolicy,
    IrqWord,
    NoisePolicy,
    NUMAMemory,
    NUMAPolicy,
    QuotaPolicy,
    SMTPolicy,
    Switch,
)
from pinning.errors import Cause
from pinning.lazy import lazy
from pinning.pods.irq_policy import IrqPolicy, irq_flaw, merged
from pinning.truncate import KEY, NAME, VALUE, listed, truncate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from enum import StrEnum

Word = TypeVar("Word", bound=str)

_CRANE_FAMILY = CRANE_CPU_MANAGER.partition("/")[0]
# Length of FAMILY/; the part after the slash may be of any length.
_LONGEST_FAMILY = max(map(len, FAMILIES)) + 1
_BEGINNINGS = (*FAMILIES, CRANE_CPU_MANAGER)
_PLACEMENT: Final = frozenset({SMT_POLICY, NUMA_POLICY, DEVICE_POLICY})
# Policy annotations of a pod: each of the 200 containers that may claim CPUs has at most nine.
MOST_POLICIES: Final = 2000


@dataclass(frozen=True, slots=True)
class PolicyAnnotation(Generic[Word]):
    """One policy annotation of a pod: its key and its parsed value."""

    key: str
    value: Word

    @property
    def field(self) -> str:
        """The field path of the annotation."""
        return annotation_field(self.key)


@dataclass(frozen=True)
class Scoped(Generic[Word]):
    """The policy annotations of one family: at most one for the pod, at most one for each container."""

    pod: PolicyAnnotation[Word] | None = None
    containers: Mapping[str, PolicyAnnotation[Word]] = field(default_factory=dict)

    def of(self, container: str) -> PolicyAnnotation[Word] | None:
        """Return the annotation that applies to a container."""
        return self.containers.get(container, self.pod)

    def is_named(self, container: str) -> bool:
        """Return whether an annotation names this container."""
        return container in self.containers


@dataclass(frozen=True)
class PolicyAnnotations:
    """Every policy annotation of a pod; causes and warnings are computed lazily, one at a time."""

    cpu: Scoped[CPUPolicy] = Scoped()
    smt: Scoped[SMTPolicy] = Scoped()
    numa: Scoped[NUMAPolicy] = Scoped()
    shared: Scoped[Switch] = Scoped()
    core_type: Scoped[CoreType] = Scoped()
    quota: Scoped[QuotaPolicy] = Scoped()
    devices: Scoped[DevicePolicy] = Scoped()
    noise: Scoped[NoisePolicy] = Scoped()
    irq: Scoped[IrqPolicy] = Scoped()
    memory: PolicyAnnotation[NUMAMemory] | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)  # keys of policy annotations, by family
    containers: frozenset[str] | None = frozenset()
    is_crowded: bool = False  # the pod has more than MOST_POLICIES policy annotations

    @property
    def causes(self) -> Iterator[Cause]:
        """Errors of policy annotations, in the order of their families (`FAMILIES`)."""
        if self.is_crowded:
            message = f"more than {MOST_POLICIES} CPU policy annotations: remove those that name no container"
            yield Cause("metadata.annotations", message, flaw=("crowded",))
        for family in (_CRANE_FAMILY, *FAMILIES):
            for key in self.keys.get(family, ()):
                yield from self._flaws(key, self.annotations[key])

    @property
    def warnings(self) -> Iterator[Cause]:
        """Warning that Crane's annotation is overridden by corepin's, if the two differ."""
        crane, pod = _annotation(CRANE_CPU_MANAGER, CPUPolicy, self.annotations), self.cpu.pod
        if crane and pod and crane.value is not pod.value:
            message = f"{crane.value!s} is overruled by {pod.key}: {pod.value!s}; remove one of the two"
            yield Cause(crane.field, message, flaw=("overruled", crane.value, pod.value))

    def noise_of(self, containers: Iterable[str]) -> NoisePolicy | None:
        """Return the noise policy of CPUs that several containers share: quiet if one of the containers is quiet."""
        if not (self.noise.pod or self.noise.containers):
            return None
        words = {it.value for name in containers if (it := self.noise.of(name))}
        return max(words, key=(NoisePolicy.NONE, NoisePolicy.QUIET).index, default=None)

    def irq_of(self, containers: Iterable[str]) -> tuple[str, ...]:
        """Return the merged `irq-policy` of several containers: interrupts that may stay on their CPUs."""
        if not (self.irq.pod or self.irq.containers):
            return ()
        return merged(it.value for name in containers if (it := self.irq.of(name)))

    def irq_devices_of(self, containers: Iterable[str]) -> tuple[str, ...]:
        """Return the containers whose device interrupts stay on their CPUs by annotation."""
        return tuple([name for name in containers if IrqWord.DEVICES in self.irq_of([name])])

    def memory_of(self, container: str) -> NUMAMemory | None:
        """Return the memory policy of a container, None if it has none; `bind` also needs `single`."""
        if self.memory is None:
            return None
        numa = self.numa.of(container)
        return self.memory.value if numa and numa.value is NUMAPolicy.SINGLE else NUMAMemory.FREE

    def names(self, container: str) -> bool:
        """Return whether an annotation asks for CPUs for this container by its name."""
        return self.cpu.is_named(container) or self.smt.is_named(container)

    def shares(self, container: str) -> bool:
        """Return whether a container may also run on the shared set."""
        annotation = self.shared.of(container)
        return annotation is not None and annotation.value is Switch.TRUE

    @property
    def states_placement(self) -> bool:
        """Return whether an annotation may decide which CPUs containers get, not only how many."""
        return not _PLACEMENT.isdisjoint(self.keys)

    @property
    def names_single(self) -> bool:
        """Return whether any container asks for CPUs of a single NUMA node."""
        named = (self.numa.pod, *self.numa.containers.values())
        return any(annotation and annotation.value is NUMAPolicy.SINGLE for annotation in named)

    def _flaws(self, key: str, value: str) -> Iterator[Cause]:
        family = _family_of(key)
        if is_misspelt(key):
            message = f"the annotation is unknown: write {SINGLE_KEYS[family]}"
            yield Cause(annotation_field(key), message, flaw=("unknown", key))
            return
        if key not in (CRANE_CPU_MANAGER, f"{family}/{POD_SCOPE}"):
            yield from self._misplaced(key, family)
        words = FAMILIES.get(family, CPUPolicy)
        if words is None:
            if flaw := irq_flaw(value):
                yield Cause(annotation_field(key), flaw, flaw=("word", key, value))
        elif _word(words, value) is None:
            yield _unsupported(key, value, words)
        elif key == NUMA_MEMORY_POD:
            yield from self._nowhere_to_bind(value)

    def _nowhere_to_bind(self, word: str) -> Iterator[Cause]:
        """Refuse to bind memory to the NUMA node of CPUs that may be on several."""
        if word == NUMAMemory.BIND and not self.names_single:
            remedy = f"write {NUMA_POLICY}/{POD_SCOPE}: {NUMAPolicy.SINGLE} too, or {NUMAMemory.FREE} here"
            message = f"{word} needs the CPUs on one NUMA node: {remedy}"
            yield Cause(annotation_field(NUMA_MEMORY_POD), message, flaw=("nowhere", word))

    def _misplaced(self, key: str, family: str) -> Iterator[Cause]:
        where, container = annotation_field(key), _container_of(key, family)
        if container is None:
            scope = truncate(key[len(family) + 1 : KEY], NAME)
            message = (
                f"scope {scope!r} is unknown: write {family}/{POD_SCOPE} or {family}/{CONTAINER_SCOPE}NAME"
            )
            yield Cause(where, message, flaw=("scope", key))
        elif self.containers is not None and container not in self.containers:
            known = self._known or "none"
            message = f"container {truncate(container, NAME)!r} does not exist in this pod; its containers are: {known}"
            yield Cause(where, message, "FieldValueNotFound", ("container", key))

    @lazy
    def _known(self: Any) -> str:
        return listed(self.containers)


NO_POLICY_ANNOTATIONS = PolicyAnnotations()


def annotation_field(key: str) -> str:
    """Return the field path of an annotation, as the API server writes it."""
    return f"metadata.annotations[{truncate(key, KEY)}]"


def is_policy_key(key: str) -> bool:
    """Return whether an annotation key belongs to corepin's policies, valid or not."""
    return key == CRANE_CPU_MANAGER or _family_of(key) in FAMILIES


def is_misspelt(key: str) -> bool:
    """Return whether a key belongs to a family with a single key and is not that key."""
    return key != SINGLE_KEYS.get(_family_of(key), key)


def _family_of(key: str) -> str:
    return key[:_LONGEST_FAMILY].partition("/")[0]


def read_policy_annotations(
    annotations: Mapping[str, str], containers: frozenset[str] | None
) -> PolicyAnnotations:
    """Return the policies among a pod's annotations; invalid ones become causes, never exceptions.

    `containers` is None if the pod does not exist yet, as in a virtual machine's template.
    """
    found = policy_keys(annotations)
    if not found:
        return NO_POLICY_ANNOTATIONS
    if len(found) > MOST_POLICIES:
        return PolicyAnnotations(is_crowded=True)
    keys = _by_family(found)

    def scoped(family: str, words: type[Word]) -> Scoped[Word]:
        named = _named(family, words, annotations, keys.get(family, ()), containers)
        return Scoped(_annotation(f"{family}/{POD_SCOPE}", words, annotations), named)

    cpu = scoped(CPU_MANAGER, CPUPolicy)
    return PolicyAnnotations(
        cpu=Scoped(cpu.pod or _annotation(CRANE_CPU_MANAGER, CPUPolicy, annotations), cpu.containers),
        smt=scoped(SMT_POLICY, SMTPolicy),
        numa=scoped(NUMA_POLICY, NUMAPolicy),
        shared=scoped(SHARED_CPUS, Switch),
        core_type=scoped(CORE_TYPE, CoreType),
        quota=scoped(QUOTA_POLICY, QuotaPolicy),
        devices=scoped(DEVICE_POLICY, DevicePolicy),
        noise=scoped(NOISE_POLICY, NoisePolicy),
        irq=scoped(IRQ_POLICY, IrqPolicy),
        memory=_annotation(NUMA_MEMORY_POD, NUMAMemory, annotations),
        annotations=annotations,
        keys=keys,
        containers=containers,
    )


def policy_keys(annotations: Mapping[str, str]) -> Sequence[str]:
    """Return the keys of policies; if there are more than `MOST_POLICIES`, return one more than that."""
    likely = (key for key in annotations if key.startswith(_BEGINNINGS))
    return list(islice(filter(is_policy_key, likely), MOST_POLICIES + 1))


def _by_family(keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(_family_of(key), []).append(key)
    return found


def _named(
    family: str,
    words: type[Word],
    annotations: Mapping[str, str],
    keys: Sequence[str],
    containers: frozenset[str] | None,
) -> Mapping[str, PolicyAnnotation[Word]]:
    """Return the valid policy annotations of a family that name a container."""
    named: dict[str, PolicyAnnotation[Word]] = {}
    for key in keys:
        container = _container_of(key, family)
        if container is not None and (containers is None or container in containers):
            annotation = _annotation(key, words, annotations)
            if annotation:
                named[container] = annotation
    return named


def _container_of(key: str, family: str) -> str | None:
    """Return the container that a key names, truncated if it is too long for a name."""
    prefix = f"{family}/{CONTAINER_SCOPE}"
    return key[len(prefix) : KEY] if key.startswith(prefix) else None


def _annotation(key: str, words: type[Word], annotations: Mapping[str, str]) -> PolicyAnnotation[Word] | None:
    given = annotations.get(key)
    word = None if given is None else _word(words, given)
    return PolicyAnnotation(key, word) if word else None


def _word(words: type[Word], given: str) -> Word | None:
    if words is not IrqPolicy and len(given) > VALUE:
        return None  # an enumeration's own error would repeat the value, whatever its length
    try:
        return words(given)
    except ValueError:
        return None


def _unsupported(key: str, value: str, words: type[StrEnum]) -> Cause:
    if words is Switch:
        message = f"{value[:60]!r} is neither true nor false: write one of them"
    else:
        message = f"{value[:60]!r} is not a policy: write one of {', '.join(words)}"
    return Cause(annotation_field(key), message, "FieldValueNotSupported", ("word", key, value))
