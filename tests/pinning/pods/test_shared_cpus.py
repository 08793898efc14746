"""The annotation for shared CPUs beside exclusive ones: its containers, refusals and warnings."""

from __future__ import annotations

from typing import Any

from pinning.pods.claims import read_pod
from tests.pods import CPU_MANAGER, container, fields, launcher, pod
from tests.tables import table

POD = "shared-cpus.corepin.io/pod"
MAIN = "shared-cpus.corepin.io/container.main"
SIDE = "shared-cpus.corepin.io/container.side"
EXCLUSIVE = {CPU_MANAGER: "exclusive"}


def two(**annotations: str) -> Any:
    """Return a pod with a container of whole CPUs and one without."""
    return pod(container("main", "2"), container("side", "500m"), annotations=annotations)


@table(
    "annotations, shares",
    {
        "the pod": ({**EXCLUSIVE, POD: "true"}, True),
        "the container": ({**EXCLUSIVE, MAIN: "true"}, True),
        "the narrower scope wins": ({**EXCLUSIVE, POD: "true", MAIN: "false"}, False),
        "cores of its own": ({"smt-policy.corepin.io/pod": "isolate", POD: "true"}, True),
        "nothing said": ({**EXCLUSIVE}, False),
        "no such word": ({**EXCLUSIVE, POD: "yes"}, False),
        "it shares its own CPUs already": ({CPU_MANAGER: "share", POD: "true"}, False),
    },
)
def test_who_runs_on_the_shared_set_too(annotations: dict[str, str], shares: bool) -> None:
    """A claim to exclusive CPUs may use the shared set if its pod's annotation says so."""
    (claim,) = read_pod(two(**annotations)).claims
    assert claim.shared_cpus is shares


def test_cores_of_cmk_have_it_too() -> None:
    """CMK's cores may have the shared set too."""
    document = pod(container("main", {"cmk.intel.com/exclusive-cores": "1"}), annotations={POD: "true"})
    (claim,) = read_pod(document).claims
    assert claim.shared_cpus
    assert read_pod(document).causes == ()


@table(
    "annotations, key, message",
    {
        "not eligible": (
            {**EXCLUSIVE, SIDE: "true"},
            SIDE,
            "container side has no exclusive CPUs, so it cannot use the shared set in addition"
            " (its CPU policy is exclusive): make it exclusive, or remove shared-cpus.corepin.io",
        ),
        "share": (
            {CPU_MANAGER: "share", MAIN: "true"},
            MAIN,
            "container main has no exclusive CPUs, so it cannot use the shared set in addition"
            " (its CPU policy is share): make it exclusive, or remove shared-cpus.corepin.io",
        ),
        "no policy": ({MAIN: "true"}, MAIN, "and no CPU policy)"),
        "nobody": ({POD: "true"}, POD, "true needs a container with exclusive CPUs, and none has them"),
        "word": ({**EXCLUSIVE, POD: "yes"}, POD, "'yes' is neither true nor false: write one of them"),
        "scope": (
            {**EXCLUSIVE, "shared-cpus.corepin.io/main": "true"},
            "shared-cpus.corepin.io/main",
            "scope 'main' is unknown",
        ),
    },
)
def test_where_it_means_nothing_it_is_refused(annotations: dict[str, str], key: str, message: str) -> None:
    """An annotation without meaning is refused with the reason and the remedy."""
    (cause,) = read_pod(two(**annotations)).causes
    assert cause.field == f"metadata.annotations[{key}]"
    assert message in cause.message


def test_virtual_machines_cannot_have_it() -> None:
    """A guest does not see the CPUs of the node: the claim is refused for VMs and has no effect."""
    kata = two(**EXCLUSIVE, **{POD: "true"})
    kata["spec"]["runtimeClassName"] = "kata-qemu"
    machine = launcher(annotations={POD: "true"})
    for document, why in ((kata, "in a Kata guest"), (machine, "the threads of a virtual machine")):
        read = read_pod(document)
        (cause,) = (cause for cause in read.causes if cause.field == f"metadata.annotations[{POD}]")
        assert cause.message.startswith(f"true is not possible: {why}")
        assert not any(claim.shared_cpus for claim in read.claims)


def test_an_unenforced_limit_is_warned_about() -> None:
    """Shared CPUs beside a limit that is not enforced are a warning at the annotation, with `keep` they are not."""
    annotations = {**EXCLUSIVE, MAIN: "true"}
    assert f"metadata.annotations[{MAIN}]" in fields(read_pod(two(**annotations)).warnings)
    kept = {**annotations, "quota-policy.corepin.io/pod": "keep"}
    assert f"metadata.annotations[{MAIN}]" not in fields(read_pod(two(**kept)).warnings)
    cores = pod(container("main", {"cmk.intel.com/exclusive-cores": "1"}), annotations={MAIN: "true"})
    assert fields(read_pod(cores).warnings) == []
