"""Node shapes (number of cores, threads per core) of the cluster, from the topology that agents publish.

The node watch updates them, and the reload of the configuration reads them like a file, so that each review uses one
consistent revision of configuration and node shapes.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pinning.machine.topology import BadTopology
from published.codec import AnotherVersion
from published.node_topology import decode_topology
from webhook.config.settings import NodeShape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.metrics import NodeMeter

# Most characters of an annotation; the largest known machine, with 896 CPUs, has one of 23 kB.
LONGEST_TEXT: Final = 64 * 1024
TEXTS_KEPT: Final = 32  # annotation texts whose shapes are cached; nodes of one kind have the same text
WHY_LIMIT: Final = 200

logger = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_shapes = msgspec.json.Decoder(tuple[NodeShape, ...])


class CoreShape(NamedTuple):
    """The cores of a node, against which claims are checked as if the node were empty."""

    threads: int  # most online threads of one core
    cores: int  # number of cores with an online CPU


class NodeShapes:
    """The shapes of the known nodes. Written by one task; `read` may be called from any thread."""

    path: Final = "the nodes"

    def __init__(self, meter: NodeMeter) -> None:
        self._meter = meter
        self._machines: dict[str, CoreShape] = {}
        self._refused: dict[str, int] = {}  # hash of a node's invalid annotation, which is logged once
        self._written = _encode(())

    def read(self) -> bytes:
        """Return the shapes as JSON for `load_shapes`; the bytes are equal as long as no shape changes."""
        return self._written

    def replace(self, nodes: Mapping[str, CoreShape | None]) -> None:
        """Replace the shapes of all nodes, by node name; None for a node without a valid annotation."""
        self._machines = {name: machine for name, machine in nodes.items() if machine}
        self._refused = {name: mark for name, mark in self._refused.items() if name in nodes}
        self._write()

    def update(self, name: str, text: str | None) -> None:
        """Replace the shape of one node by the one in its annotation `text`; None or an invalid text removes it."""
        machine = self.machine_of(name, text)
        self._meter.ignored.set(len(self._refused))
        if machine == self._machines.get(name):
            return
        if machine:
            self._machines[name] = machine
        else:
            del self._machines[name]
        self._write()

    def machine_of(self, name: str, text: str | None) -> CoreShape | None:
        """Return the shape in a node's annotation; None if it is absent or invalid, which is logged once per text."""
        if text is None:
            self._refused.pop(name, None)
            return None
        try:
            machine = read_core_shape(text)
        except (AnotherVersion, BadTopology) as error:
            self._refuse(name, text, str(error))
            return None
        self._refused.pop(name, None)
        return machine

    def _refuse(self, name: str, text: str, why: str) -> None:
        if self._refused.get(name) == hash(text):
            return
        self._refused[name] = hash(text)
        self._meter.refused.inc()
        logger.warning("topology of a node ignored", extra={"facts": {"node": name, "why": why[:WHY_LIMIT]}})

    def _write(self) -> None:
        self._meter.known.set(len(self._machines))
        self._meter.ignored.set(len(self._refused))
        written = _encode(kinds(self._machines))
        if written != self._written:
            self._written = written
            logger.info("kinds of nodes changed", extra={"facts": {"shapes": written.decode()}})


def load_shapes(written: bytes) -> tuple[NodeShape, ...]:
    """Decode the shapes that `NodeShapes.read` encoded."""
    return _shapes.decode(written)


def kinds(machines: Mapping[str, CoreShape]) -> tuple[NodeShape, ...]:
    """Return the largest node shape for each number of threads per core, named after the first node that has it.

    A claim that does not fit the largest shape fits no smaller one. Each number of threads per core is kept, because
    whole cores are counted only if all nodes have the same number.
    """
    first: dict[CoreShape, str] = {}
    for name in sorted(machines):
        first.setdefault(machines[name], name)
    # In ascending order, so that the shape with the most cores remains for each number of threads.
    largest = {machine.threads: machine for machine in sorted(first)}
    return tuple(
        NodeShape(name=f"node {first[machine]}", cores=machine.cores, threads_per_core=threads)
        for threads, machine in reversed(largest.items())
    )


@lru_cache(maxsize=TEXTS_KEPT)
def read_core_shape(text: str) -> CoreShape:
    """Return the shape in an annotation `status.corepin.io/topology`; raise AnotherVersion or BadTopology."""
    if len(text) > LONGEST_TEXT:
        raise BadTopology(f"it has {len(text)} characters, and no topology has more than {LONGEST_TEXT}")
    topology = decode_topology(text)
    running = [len(topology.online_cpus_of(core)) for core in topology.cores]
    if not any(running):
        raise BadTopology("no core is online")
    if sum(len(core.cpus) for core in topology.cores) != len(topology.cpus):
        raise BadTopology("a CPU belongs to two cores")
    return CoreShape(threads=max(running), cores=sum(1 for width in running if width))
