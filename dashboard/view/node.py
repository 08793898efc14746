"""Page of one node: sockets, NUMA nodes, caches, cores and threads, with the owner of each CPU."""

from __future__ import annotations

from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from dashboard.model.names import container_of, pod_of, refusals
from dashboard.view.messages import facts, health_of
from dashboard.view.nodes import health_of_node, parts
from dashboard.view.recent_events import namespaces, recent_events
from dashboard.view.shapes import Cache, Cell, NodePage, NUMANode, ShownOwner, Sign, Socket, Waiting
from dashboard.view.thread_roles import roles_of
from drawing.floorplan import cache_title, drawn_order
from drawing.picture import Use, headline, owner_keys, sign_keys, uses
from drawing.policy_words import devices_on, near_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dashboard.model.cluster import Cluster
    from dashboard.view.filters import Filter
    from dashboard.view.thread_roles import Role
    from drawing.picture import Key, Picture
    from pinning.machine.topology import Core, Topology
    from published.node_pools import Pools

MOST_WAITING: Final = 200  # most refused claims in the list; the page's notes have the number of waiting pods


def node_page(cluster: Cluster, name: str, wanted: Filter) -> NodePage | None:
    """Return the page of a node, None if there is no such node."""
    node = cluster.nodes.get(name)
    if node is None:
        return None
    health, notes = health_of_node(cluster, node)
    drawn = _drawn(cluster, node.pools, node.picture, wanted) if node.pools and node.picture else _Drawn()
    return NodePage(
        name=name,
        health=health,
        notes=notes,
        machine=headline(node.picture.topology) if node.picture else "",
        parts=parts(node.counts),
        free=len(node.free),
        near=_near(node.pools) if node.pools else "",
        sockets=drawn.sockets,
        owners=drawn.owners,
        signs=drawn.signs,
        waiting=tuple(islice(_waiting(cluster, name, wanted), MOST_WAITING)),
        history=recent_events(cluster, lambda where, _: where == name),
        since=cluster.since,
        namespaces=namespaces(cluster),
        troubles=cluster.troubles,
    )


def _near(pools: Pools) -> str:
    text = near_words(pools.near_cpus, pools.more_near_cpus)
    return text[:1].upper() + text[1:]


class _Drawn(NamedTuple):
    """The drawing of a node whose agent reports its CPUs."""

    sockets: tuple[Socket, ...] = ()
    owners: tuple[ShownOwner, ...] = ()
    signs: tuple[Sign, ...] = ()


def _drawn(cluster: Cluster, pools: Pools, picture: Picture, wanted: Filter) -> _Drawn:
    keys, signs = owner_keys(picture), sign_keys(picture)
    owners = tuple(
        _owner(cluster, pools, owner.name, key, wanted)
        for owner, key in zip(picture.owners, keys, strict=True)
    )
    shown = uses(keys, signs)
    roles = roles_of(cluster, picture)
    cells = _Cells(keys, owners, shown, roles)
    devices = devices_on(_devices(cluster, picture))
    return _Drawn(tuple(_sockets(picture.topology, cells, devices)), owners, tuple(_signs(signs, shown)))


def _devices(cluster: Cluster, picture: Picture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield resource and NUMA nodes of each container's devices on the node."""
    for owner in picture.owners:
        if container := cluster.container(owner.name):
            yield from ((device.resource, device.nodes) for device in container.devices)


def _owner(cluster: Cluster, pools: Pools, name: str, key: Key, wanted: Filter) -> ShownOwner:
    held, container = pools.owners[name], cluster.container(name)
    namespace, _, pod = pod_of(name).partition("/")
    return ShownOwner(
        label=key.sign.text,
        name=name,
        namespace=namespace,
        pod=pod,
        container=container_of(name),
        use=key.use.value,
        health=health_of(container),
        cpus=str(key.cpus),
        idle=str(key.idle),
        facts=tuple(facts(held, container)),
        dim=not wanted.takes_owner(name, held.policy, held.smt_policy),
    )


def _signs(signs: Sequence[Key], shown: Mapping[int, tuple[Key, Use]]) -> Iterator[Sign]:
    """Yield the legend entries of CPUs without an owner; that of the shared set lists all CPUs of the set."""
    for key in signs:
        cpus = sorted(cpu for cpu, (other, _) in shown.items() if other is key)
        if cpus:
            named = key.cpus if key.use is Use.SHARED else type(key.cpus)(cpus)
            yield Sign(key.sign.text, key.use.value, key.meaning, len(named), str(named))


class _Cells(NamedTuple):
    """Data from which the cells of a machine's CPUs are built."""

    keys: Sequence[Key]
    owners: Sequence[ShownOwner]
    shown: Mapping[int, tuple[Key, Use]]
    roles: Mapping[int, Role]

    def cell(self, cpu: int, core: Core) -> Cell:
        """Return the cell of a CPU."""
        key, use = self.shown[cpu]
        place = next((at for at, other in enumerate(self.keys) if other is key), -1)
        role = self.roles.get(cpu)
        thread = f" (thread {list(core.cpus).index(cpu)} of core {core.id})" if len(core.cpus) > 1 else ""
        return Cell(
            cpu=cpu,
            sign=key.idle_sign.text if use is Use.IDLE else key.sign.text,
            use=use.value,
            owner=place,
            role=role.sign if role else "",
            text=f"CPU {cpu}{thread}: {_meaning(key, use)}{f', {role.text}' if role else ''}",
            dim=self.owners[place].dim if place >= 0 else any(owner.dim for owner in self.owners),
        )


def _meaning(key: Key, use: Use) -> str:
    if use is Use.IDLE:
        return f"idle sibling of {key.meaning}"
    return f"{key.meaning}, exclusive" if use is Use.EXCLUSIVE else key.meaning


def _sockets(topology: Topology, cells: _Cells, devices: Mapping[int, str]) -> Iterator[Socket]:
    for socket, cores in groupby(drawn_order(topology), key=lambda core: core.package):
        nodes = groupby(cores, key=lambda core: core.numa_node)
        yield Socket(
            f"Socket {socket}",
            tuple(
                NUMANode(_title(node, devices), tuple(_caches(topology, of_node, cells)))
                for node, of_node in nodes
            ),
        )


def _title(node: int, devices: Mapping[int, str]) -> str:
    mark = devices.get(node)
    return f"NUMA node {node}, {mark}" if mark else f"NUMA node {node}"


def _caches(topology: Topology, cores: Iterator[Core], cells: _Cells) -> Iterator[Cache]:
    for _, group in groupby(cores, key=lambda core: (core.uncore_cache, core.core_type)):
        members = list(group)
        yield Cache(
            cache_title(topology, members[0]).capitalize(),
            tuple(tuple(cells.cell(cpu, core) for cpu in core.cpus) for core in members),
        )


def _waiting(cluster: Cluster, node: str, wanted: Filter) -> Iterator[Waiting]:
    for pod in sorted(cluster.waiting.get(node, ()), key=lambda pod: pod.key):
        if wanted.takes_pod(pod.key):
            for container, reason, message in refusals(pod):
                yield Waiting(pod.namespace, pod.name, container, node, reason, message)
