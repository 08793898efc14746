"""Node shapes (threads per core, cores, memory) of the cluster, from the topology that agents publish.

The node watch writes them; the reload of the configuration reads them like a file. So a review sees them only as a
part of one consistent configuration.
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

# Characters of an annotation; that of the largest known machine, with 896 CPUs, has 23 kB.
LONGEST_TEXT: Final = 64 * 1024
TEXTS_KEPT: Final = 32  # annotation texts whose shapes are cached; nodes of one kind have the same text
WHY_LIMIT: Final = 200

logger = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_shapes = msgspec.json.Decoder(tuple[NodeShape, ...])


class CoreShape(NamedTuple):
    """The numbers by which a claim is checked against a node, as if the node were empty."""

    threads: int  # threads of the core that has most of them
    cores: int


class NodeShapes:
    """The shapes of the known nodes. Written by one task; `read` may be called from any thread."""

    path: Final = "the nodes"

    def __init__(self, meter: NodeMeter) -> None:
        self._meter = meter
        self._machines: dict[str, CoreShape] = {}
        self._refused: dict[str, int] = {}  # hash of each node's refused text, so that it is logged once
        self._written = _encode(())

    def read(self) -> bytes:
        """Return the shapes as JSON for `load_shapes`; the bytes are equal as long as no shape changes."""
        return self._written

    def replace(self, nodes: Mapping[str, CoreShape | None]) -> None:
        """Replace the annotations of all nodes, by name; None for a node without one."""
        self._machines = {name: machine for name, machine in nodes.items() if machine}
        self._refused = {name: mark for name, mark in self._refused.items() if name in nodes}
        self._write()

    def update(self, name: str, text: str | None) -> None:
        """Replace the annotation of one node; None if it has none any more."""
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
    """Return the distinct node shapes, named after their first node: the largest for each number of threads per core.

    A claim that fits no largest node fits no smaller one. Each number of threads is kept, because whole cores are
    counted only if it is the same on all nodes.
    """
    first: dict[CoreShape, str] = {}
    for name in sorted(machines):
        first.setdefault(machines[name], name)
    # The largest shape for each number of threads.
    largest = {machine.threads: machine for machine in sorted(first)}
    return tuple(
        NodeShape(name=f"node {first[machine]}", cores=machine.cores, threads_per_core=threads)
        for threads, machine in reversed(largest.items())
    )


@lru_cache(maxsize=TEXTS_KEPT)
def read_core_shape(text: str) -> CoreShape:
    """Return the shape in an annotation `status.corepin.io/topology`; raise AnotherVersion or BadTopology otherwise."""
    if len(text) > LONGEST_TEXT:
        raise BadTopology(f"{len(text)} characters are more than the {LONGEST_TEXT} of any topology")
    topology = decode_topology(text)
    running = [len(topology.online_cpus_of(core)) for core in topology.cores]
    if not any(running):
        raise BadTopology("none of its cores is online")
    if sum(len(core.cpus) for core in topology.cores) != len(topology.cpus):
        raise BadTopology("a CPU belongs to two of its cores")
    return CoreShape(threads=max(running), cores=sum(1 for width in running if width))
