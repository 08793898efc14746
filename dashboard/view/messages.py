"""Texts about one container: its policy, since when it has its CPUs, and whether the kernel confirms them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboard.model.records import MOST_MESSAGE
from dashboard.view.shapes import Fact
from drawing.claim_words import claim_names
from drawing.policy_words import NUMA_WORDS, PATH_WORDS, SMT_WORDS, device_words, noise_words
from pinning.contract import CPUPolicy, NUMAPolicy, SMTPolicy
from published.pod_status import POD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from published.node_pools import Owner
    from published.pod_status import Applied, Container, Machine

OK: Final = "ok"
TROUBLE: Final = "trouble"
WAITING: Final = "waiting"
OBSERVES: Final = "observes"
SILENT: Final = "silent"
PENDING: Final = "pending"  # health of a container whose CPUs the kernel has not confirmed yet

_POLICIES: Final = {
    CPUPolicy.EXCLUSIVE.value: "CPUs of its own",
    CPUPolicy.SHARE.value: "CPUs that other containers may use too",
    POD: "CPUs of its pod, with other containers of the pod",
}
_SMT: Final = {policy.value: words for policy, words in SMT_WORDS.items()}
_NUMA: Final = {policy.value: words for policy, words in NUMA_WORDS.items()}
POOL_WORDS: Final = "the rest of the pod's budget, where its containers without slices run"
DEFAULT_NUMA: Final = NUMAPolicy.PACKED.value
DEFAULT_SMT: Final = SMTPolicy.PREFER.value


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 claim", "2 claims"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def health_of_owner(owner: Owner, container: Container | None) -> str:
    """Return the health of an owner of CPUs: a container, or the pool of a pod.

    A pool is always OK, because its containers have a health of their own.
    """
    return OK if owner.policy == POD and container is None else health_of(container)


def health_of(container: Container | None) -> str:
    """Return the health of a container that holds CPUs."""
    if container is None:
        return PENDING
    if container.drift or container.intruders or container.uncounted:
        return TROUBLE
    return OK if container.pinned and not container.not_proven else PENDING


def facts(owner: Owner, container: Container | None) -> Iterator[Fact]:
    """Yield the facts about a container that holds CPUs: policy, CPUs, since when, proof."""
    yield Fact("Policy", _policy(owner, container))
    yield Fact("CPUs", f"{owner.cpus}{f' (siblings {owner.idle} idle)' if owner.idle else ''}")
    if container and container.numa_nodes:
        yield Fact("NUMA nodes", ", ".join(map(str, container.numa_nodes)))
    if container and (near := tuple(device_words(container))):
        yield Fact("Devices", ", ".join(near)[:MOST_MESSAGE])
    if container and container.claims:
        yield Fact("Claims", claim_names(container)[:MOST_MESSAGE])
    if container and container.shared_cpus:
        yield Fact("Also runs on", f"shared CPUs {container.shared_cpus}")
    if container and container.memory:
        yield Fact(
            "Memory", f"{container.memory}{f': {container.memory_note}' if container.memory_note else ''}"
        )
    if container and container.uncounted:
        yield Fact("Not counted", container.uncounted)
    if container:
        yield from _disturbances(container)
    if container and container.applied and container.applied.time:
        yield Fact("Since", container.applied.time, is_time=True)
    yield Fact("Proof", proof(container, owner))


def _disturbances(container: Container) -> Iterator[Fact]:
    """Yield facts about interrupts on a container's CPUs that violate its pod's policy, and about noise there."""
    if container.not_quiet:
        yield Fact("Not quiet", container.not_quiet[:MOST_MESSAGE])
    if container.not_kept:
        yield Fact("Interrupts not kept", container.not_kept[:MOST_MESSAGE])
    if container.noise:
        words, since = noise_words(container.noise.kind), container.noise.since
        yield Fact("Noise", f"{words} since {since}"[:MOST_MESSAGE])


def _policy(owner: Owner, container: Container | None) -> str:
    words = [owner.policy, f"smt {owner.smt_policy}" if owner.smt_policy else ""]
    words.append(f"numa {container.numa_policy}" if container and container.numa_policy else "")
    words.append(f"core type {container.core_type}" if container and container.core_type else "")
    return ", ".join(filter(None, words))


def proof(container: Container | None, owner: Owner | None = None) -> str:
    """Return a text on whether the kernel has confirmed that a container runs on its CPUs."""
    if container is None and owner and owner.policy == POD:
        return POOL_WORDS
    if container is None:
        return "not proven yet, its pod has no status"
    troubles = [f"{name} may run on its CPUs" for name in container.intruders]
    if container.drift:
        troubles.insert(0, "some of its tasks may run outside of its CPUs")
    if container.not_proven:
        troubles.append(f"not proven, {container.not_proven}")
    if container.applied is None or not (container.pinned or troubles):
        troubles.append("not proven yet, the agent has not seen it on its CPUs")
    if troubles:
        return "; ".join(troubles)[:MOST_MESSAGE]
    return (
        f"the kernel keeps it on {container.applied.cpus}; {_how(container.applied)}"
        if container.applied
        else ""
    )


def _how(applied: Applied) -> str:
    path = PATH_WORDS.get(applied.path, applied.path or "path unknown")
    if applied.window_seconds is None:
        return path
    if applied.window_seconds == 0:
        return f"{path}, before its first instruction"
    return f"{path}, at most {applied.window_seconds:g} s after its start"


def why(container: Container) -> str:
    """Return the policies that chose a container's CPUs, or the reason why it has none."""
    if refusal := container.refusal:
        kept = f" It keeps CPUs {container.cpus}." if container.policy and container.cpus else ""
        return f"Waits ({refusal.reason}): {sentence(refusal.message)}{kept}"
    if not container.policy:
        return "Has no CPUs of its own."
    rules = [_POLICIES.get(container.policy, container.policy)]
    if container.policy == CPUPolicy.EXCLUSIVE:
        rules.append(_SMT.get(container.smt_policy or DEFAULT_SMT, container.smt_policy))
    rules.append(_NUMA.get(container.numa_policy or DEFAULT_NUMA, container.numa_policy))
    rules += [f"on {container.core_type} cores"] if container.core_type else []
    return f"{sentence(', '.join(rules))} That gave it CPUs {container.cpus}."


def sentence(text: str) -> str:
    """Return a text with a capital first letter and a full stop."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def machine(vm: Machine) -> Iterator[Fact]:
    """Yield facts about the CPUs of a virtual machine's threads."""
    yield Fact("Kind", vm.kind)
    for number, cpus in enumerate(vm.vcpus):
        yield Fact(f"vCPU {number}", _on(cpus))
    if not vm.one_to_one and vm.reason:
        yield Fact("Not one to one", vm.reason)
    yield Fact("Emulator", _on(vm.emulator) if vm.emulator else "shared set")
    for number, cpus in enumerate(vm.iothreads):
        yield Fact(f"I/O thread {number}", _on(cpus))
    if vm.vhost:
        yield Fact("vhost", _on(vm.vhost))
    if vm.refused:
        yield Fact("Not moved", f"the kernel keeps {' and '.join(vm.refused)} on other CPUs")
    if vm.note:
        yield Fact("Note", vm.note)
    if vm.time:
        yield Fact("Since", vm.time, is_time=True)


def _on(cpus: str) -> str:
    return f"CPU {cpus}" if cpus.isdecimal() else f"CPUs {cpus}"
