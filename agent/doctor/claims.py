"""Check that ResourceClaims can get CPUs of this machine, if the agent is their DRA driver. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.doctor.check import finding, ok, unknown
from pinning.contract import DRA_CPU_CLASS, DRA_DRIVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.doctor.check import Check

OLDEST_KUBELET: Final = (1, 34)  # first version that calls drivers by the API v1
_PUBLISHES_NONE: Final = (
    "if the agent's log has `no CPUs published for claims`, do what its reason says, such as to switch on"
    " DRAConsumableCapacity of API server and scheduler"
)
REACH: Final = "let KUBECONFIG reach the cluster, and name this node with --node"


class ClusterFacts(NamedTuple):
    """Facts about ResourceClaims from the API server."""

    has_group: bool = True  # the API server has the group resource.k8s.io/v1
    drivers: Mapping[str, int] = {}  # number of CPUs that each driver publishes for this node
    kubelet: str = ""  # the kubelet's version; empty: not known
    classes: frozenset[str] | None = None  # names of the DeviceClasses; None: no permission to list them


class ClaimFacts(NamedTuple):
    """Facts about the driver; `absent_folders` are host folders that the driver needs and that do not exist."""

    is_wanted: bool = False  # the agent is configured as driver of ResourceClaims
    absent_folders: tuple[str, ...] = ()
    cdi_folder: str = ""  # the CDI folder, if the agent cannot write it; empty: it can
    is_listening: bool = False  # the plugin's registration socket exists
    cluster: ClusterFacts | None = None  # None: not known
    silence: str = ""  # why `cluster` could not be read


NOT_WANTED: Final = ClaimFacts()


def claim_checks(facts: ClaimFacts, *, has_room: bool | None, observes: bool) -> Iterator[Check]:
    """Yield the findings on claims; none if the agent is not their driver.

    `has_room`: the agent has CPUs to publish for claims, also those that claims hold; None: not known.
    """
    if not facts.is_wanted:
        return
    if observes:
        yield ok("claims", "no claims are served, because corepin only observes here")
        return
    yield from _of_host(facts)
    if facts.cluster is None:
        yield unknown(
            "claims", f"the resources that the API server serves are not known ({facts.silence})", REACH
        )
    else:
        yield from _of_cluster(facts.cluster, has_room=has_room)


def _of_host(facts: ClaimFacts) -> Iterator[Check]:
    for folder in facts.absent_folders:
        yield finding("claims", f"no folder {folder} for the driver's socket", "mount it: component dra")
    if not facts.absent_folders and not facts.is_listening:
        remedy = "see `claims are not served` in the agent's log; the agent tries again by itself"
        yield finding("claims", "the driver does not listen for the kubelet", remedy)
    if facts.cdi_folder:
        message = f"CDI folder {facts.cdi_folder} cannot be written, so no claim can be prepared"
        yield finding("claims", message, "mount it writable, and name it with --cdi-dir")


def _of_cluster(cluster: ClusterFacts, *, has_room: bool | None) -> Iterator[Check]:
    if not cluster.has_group:
        message = "the API server does not serve resource.k8s.io/v1, so no CPUs are published"
        yield finding("claims", message, "remove the component dra, or use Kubernetes 1.36 or later")
        return
    if cluster.kubelet and _version(cluster.kubelet) < OLDEST_KUBELET:
        message = f"kubelet {cluster.kubelet} accepts no driver of this version"
        yield finding("claims", message, "use a kubelet of Kubernetes 1.36 or later on this node")
    yield from _of_drivers(cluster, has_room=has_room)
    yield from _of_classes(cluster)


def _of_drivers(cluster: ClusterFacts, *, has_room: bool | None) -> Iterator[Check]:
    others = sorted(cluster.drivers.keys() - {DRA_DRIVER})
    if others:
        message = f"driver {others[0]} offers the CPUs of this node too, so corepin publishes none"
        yield finding("claims", message, "uninstall one of the two drivers on this node")
    elif DRA_DRIVER in cluster.drivers:
        count = cluster.drivers[DRA_DRIVER]
        yield ok("claims", f"the scheduler sees {count} CPUs of this node, including those that claims hold")
    elif has_room is False:
        message = "no CPUs of this node are published, because containers without claims hold every core"
        yield ok("claims", message, "claims get the cores of containers that end")
    elif has_room is None:
        message = "no CPUs of this node are published: every core is held, or a feature gate is off"
        yield unknown("claims", message, f"start the agent, which knows what is held; {_PUBLISHES_NONE}")
    else:
        message = "no CPUs of this node are published, although claims hold cores or could get free ones"
        yield finding("claims", message, _PUBLISHES_NONE)


def _of_classes(cluster: ClusterFacts) -> Iterator[Check]:
    if cluster.classes is None:
        return
    if DRA_DRIVER not in cluster.classes:
        message = f"there is no DeviceClass {DRA_DRIVER}, which claims name"
        yield finding("claims", message, "apply the component dra again")
    if DRA_CPU_CLASS not in cluster.classes:
        message = (
            f"there is no DeviceClass {DRA_CPU_CLASS}, which KubeVirt and examples of other drivers name"
        )
        yield ok("claims", message, "apply the component dra-cpu-class if you need it")


def _version(text: str) -> tuple[int, int]:
    """Return the major and minor version of the kubelet; an unreadable version counts as new."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})", text)
    return (int(match[1]), int(match[2])) if match else (9999, 0)
