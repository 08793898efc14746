"""The container runtime of the node over CRI v1: containerd 1.6 and newer, CRI-O (interface `Runtime`)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from agent.cri import listing_pb2
from agent.cri.container_facts import ContainerFacts
from agent.cri.container_info import describe
from agent.cri.environments import largest_environments
from agent.cri.followed import FollowedList, OwnersInEvents
from agent.cri.lists import Lists
from agent.cri.records import recorded_cpus
from agent.cri.sandboxes import SandboxListing
from agent.cri.statuses import container_exit
from agent.errors import AgentError, Gone, Refused, TooLarge, Unavailable
from agent.grpc_calls import Calls
from apiserver.backoff import Backoff
from pinning.machine.cpuset import EMPTY
from pinning.planning.observed import Owner
from pinning.pods.vm_handlers import is_vm_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agent.cri.lists import ListedContainer, ListedSandbox
    from agent.interfaces import ContainerExit, RuntimeChange, RuntimeContainer, RuntimeSandbox
    from agent.node_state import LargeEnvironment
    from pinning.machine.cpuset import CPUSet

logger = logging.getLogger(__name__)

SERVICE: Final = "runtime.v1.RuntimeService"
_UPDATES_AT_ONCE: Final = 2  # a third makes containerd no faster and delays the kubelet's calls
_POLLS_WITH_EVENTS: Final = 10  # poll this many times less often while the event stream works
# room for a pod's status; a larger event is skipped, and the next poll finds the change
_EVENT_BYTES: Final = 2**20
# list VMs this many times less often on nodes without any, which most are
_POLLS_WITHOUT_MACHINES: Final = 10
# These versions send each event to one client only, so the kubelet would miss the events that the agent receives.
_SHARED_EVENTS: Final = "containerd 1."


class CRI:
    """The container runtime behind one socket.

    Every call has a timeout, and a call that returned may still have had no effect.
    """

    def __init__(self, socket: Path, *, timeout_seconds: float = 10.0, poll_seconds: float = 1.0) -> None:
        self.name = f"container runtime at {socket}"
        self.socket = socket
        self._calls = Calls(socket, SERVICE, timeout_seconds)
        self._poll_seconds = poll_seconds
        self._updates = asyncio.Semaphore(_UPDATES_AT_ONCE)
        self.facts = ContainerFacts(self._calls)
        self._owners: dict[str, Owner] = {}  # owners of the containers in the last listing
        self._in_events = OwnersInEvents()  # owners of containers that events named after that listing
        self._sandboxes: Collection[str] = ()
        self._followed = FollowedList()
        self._lists = Lists(self._calls)
        self._machines = SandboxListing(self._calls)
        self._seen, self._seen_machines = _states(()), _machine_states({})
        self._polls = 0

    async def identify(self) -> str:
        """Return the runtime's name and version, e.g. "containerd 2.4.2", and keep it as `name`."""
        answer = await self._calls.ask("Version", listing_pb2.VersionRequest(), listing_pb2.VersionResponse)
        self.name = f"{answer.runtime_name} {answer.runtime_version.removeprefix('v')}"
        return self.name

    async def containers(self) -> tuple[RuntimeContainer, ...]:
        """Return every created, running or exited container; raise Unavailable instead of an incomplete list."""
        known = dict(self._followed.sandboxes) if self._followed.is_current else None
        self._followed.begin()
        listed = await self._lists.containers()
        # The fields of a sandbox that passes read do not change, except on nodes with VMs, where no list is current.
        if known is None or any(container.sandbox not in known for container in listed):
            # listed after the containers, so that each one's sandbox is included
            known = await self._lists.sandboxes()
        self._followed.listed(listed, known)
        return await self._described(listed, known)

    async def known_containers(self) -> tuple[RuntimeContainer, ...] | None:
        """Return the containers by the last list and later events; None: they must be listed. Raises Unavailable."""
        followed = self._followed
        if not followed.is_current:
            return None
        return await self._described([*followed.containers.values()], dict(followed.sandboxes))

    def changes(self) -> tuple[RuntimeChange, ...] | None:
        """Return the containers that events changed since the last call; None if any may have changed."""
        return self._followed.changes()

    async def _described(
        self, listed: Sequence[ListedContainer], sandboxes: Mapping[str, ListedSandbox]
    ) -> tuple[RuntimeContainer, ...]:
        """Return the listed containers with the facts that lists lack."""
        self._in_events.listed()
        known = [container for container in listed if container.sandbox in sandboxes]
        self._owners = {
            container.id: _owner(container, sandbox)
            for container in known
            if not is_vm_handler((sandbox := sandboxes[container.sandbox]).handler)
        }
        self._sandboxes = sandboxes.keys()
        is_followed = self._followed.is_current
        infos = [
            await self.facts.of(each, sandboxes[each.sandbox].handler, is_followed=is_followed)
            for each in known
        ]
        found = [(container, info) for container, info in zip(known, infos, strict=True) if info]
        self.facts.keep(found)
        await self._machines.take(sandboxes, found)
        if self._machines.machines:
            self._followed.doubt()
        self._seen, self._seen_machines = _states(listed), _machine_states(sandboxes)
        return tuple(describe(container, sandboxes[container.sandbox], info) for container, info in found)

    def sandboxes(self) -> tuple[RuntimeSandbox, ...]:
        """Return the virtual machines of the last listing."""
        return self._machines.machines

    def known(self, container_id: str) -> Owner | None:
        """Return the owner by a list or an event, None if the runtime must be asked; raise Gone for a sandbox."""
        if container_id in self._sandboxes:
            raise Gone(f"{container_id} is no container")
        return self._in_events.get(container_id) or self._owners.get(container_id)

    async def owner(self, container_id: str) -> Owner:
        """Return the owner of a container; raise Gone, Unavailable, Refused.

        Sandboxes and containers in VMs have no owner here, because the runtime manages their cgroups. The runtime is
        asked only about ids that neither the last listing nor an event contained.
        """
        if known := self.known(container_id):
            return known
        for container in await self._lists.containers(container_id):
            if owner := await self._owner_on_host(container):
                return owner
        raise Gone(f"{container_id} is no container")

    async def created(self, container_ids: Collection[str]) -> Mapping[str, Owner | None]:
        """Return the owners of those of these containers that wait for their start; None for one in a VM."""
        listed = [each for each in await self._lists.created() if each.id in container_ids]
        return {each.id: await self._owner_on_host(each) for each in listed}

    async def _owner_on_host(self, container: ListedContainer) -> Owner | None:
        sandbox = (await self._lists.sandboxes(container.sandbox)).get(container.sandbox)
        return _owner(container, sandbox) if sandbox and not is_vm_handler(sandbox.handler) else None

    async def update_cpus(self, container_id: str, cpus: CPUSet, mems: CPUSet = EMPTY) -> None:
        """Make the runtime set and record a container's CPUs.

        Verify by reading the cgroup, because success proves nothing. `mems` are the NUMA nodes for its memory; an empty
        set leaves them unchanged. Raises Gone, Unavailable, Refused, or ValueError for an empty CPU set (which CRI
        takes for "unchanged").
        """
        if not cpus:
            raise ValueError(f"container {container_id}: an empty set is not a cpuset")
        linux = listing_pb2.LinuxResources(cpuset_cpus=str(cpus), cpuset_mems=str(mems))
        request = listing_pb2.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
        async with self._updates:
            await self._calls.ask(
                "UpdateContainerResources", request, listing_pb2.UpdateContainerResourcesResponse
            )

    async def recorded_cpus(self, container_ids: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the recorded cpusets by container id; containers without a record are left out."""
        return await recorded_cpus(self._calls, container_ids)

    async def exit_of(self, container_id: str) -> ContainerExit | None:
        """Return how a container ended, None if it has not; raise Gone, TooLarge, Unavailable, Refused."""
        async with self.facts.turn:
            return await container_exit(self._calls, container_id)

    async def largest_environments(self) -> tuple[LargeEnvironment, ...] | None:
        """Return the containers with the largest environments; None if the runtime is out of reach."""
        return await largest_environments(self._calls, self._lists, self.facts.turn)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever containers may have changed, until cancelled; reconnect after errors.

        While it runs, calls reuse one connection; simultaneous calls open further ones.
        """
        with self._calls.lasting():
            await self._watch(changed)

    async def _watch(self, changed: Callable[[], None]) -> None:
        backoff = Backoff(first=self._poll_seconds / 4, longest=self._poll_seconds * 5)
        while True:
            try:
                await self.identify()
                self._lost()
                changed()
                await self._watch_connected(changed, backoff)
            except AgentError as error:
                wait = backoff.next()
                facts = {"reason": str(error), "retry_seconds": round(wait, 1)}
                logger.warning("runtime out of reach", extra={"facts": facts})
                await asyncio.sleep(wait)

    async def _watch_connected(self, changed: Callable[[], None], backoff: Backoff) -> None:
        """Poll for changes, less often while events arrive; raise Unavailable if the runtime is out of reach."""
        events = asyncio.create_task(self._follow_events(changed))
        try:
            while True:
                await self._pause(events)
                await self._poll(changed)
                backoff.reset()
        finally:
            events.cancel()
            await asyncio.gather(events, return_exceptions=True)

    async def _pause(self, events: asyncio.Task[None]) -> None:
        """Wait until the next poll; return early if the event stream is lost."""
        if not events.done():
            await asyncio.wait({events}, timeout=self._poll_seconds * _POLLS_WITH_EVENTS)
            return
        events.result()
        await asyncio.sleep(self._poll_seconds)

    async def _poll(self, changed: Callable[[], None]) -> None:
        """List containers and virtual machines, and call `changed` if they differ from the last poll or the events."""
        self._polls += 1
        seen, machines = _states(await self._lists.containers()), self._seen_machines
        if machines or self._polls % _POLLS_WITHOUT_MACHINES == 0:
            machines = _machine_states(await self._lists.sandboxes())
        if self._followed.is_current:
            self._seen = _states(self._followed.containers.values())
        if (seen, machines) != (self._seen, self._seen_machines):
            self._seen, self._seen_machines = seen, machines
            self._followed.doubt()
            changed()

    async def _follow_events(self, changed: Callable[[], None]) -> None:
        """Apply events to the list, and call `changed` at those with news and at those that are too large.

        Return if the runtime offers no events, raise Unavailable when the stream ends.
        """
        if self.name.startswith(_SHARED_EVENTS):
            return
        while True:
            try:
                await self._take_events(changed)
            except Refused as refused:
                logger.info("runtime has no events, polling", extra={"facts": {"reason": str(refused)}})
                return
            except TooLarge as large:
                logger.info("runtime event skipped", extra={"facts": {"reason": str(large)}})
                changed()
                # a reconnect at once could receive the same oversized event
                await asyncio.sleep(self._poll_seconds * _POLLS_WITH_EVENTS)

    def _lost(self) -> None:
        """Record that events may have been lost, and that the runtime may have restarted."""
        self._followed.lost()
        self.facts.lost()

    async def _take_events(self, changed: Callable[[], None]) -> None:
        """Apply events to the list, and call `changed` at those with news.

        Raise Unavailable when the stream ends, Refused without event support, TooLarge. CRI-O with `enable_pod_events =
        false`, its default, ends the stream at once with OK.
        """
        request, kind, has_events = listing_pb2.GetEventsRequest(), listing_pb2.ContainerEvent, False
        try:
            async for event in self._calls.stream("GetContainerEvents", request, kind, _EVENT_BYTES):
                has_events = True
                self._in_events.take(event)
                is_news = self._followed.take(event)
                if is_news:
                    changed()
        finally:
            self._lost()  # before the next connection, so that passes list the containers until then
        if has_events:
            raise Unavailable(f"{self._calls.socket}: GetContainerEvents ended")
        raise Refused(
            f"{self._calls.socket}: GetContainerEvents ended without an event; for CRI-O set"
            " `enable_pod_events = true` below [crio.runtime]"
        )


def _owner(container: ListedContainer, sandbox: ListedSandbox) -> Owner:
    return Owner(sandbox.pod_uid, container.name)


def _machines(sandboxes: Mapping[str, ListedSandbox]) -> Iterator[ListedSandbox]:
    return (sandbox for sandbox in sandboxes.values() if is_vm_handler(sandbox.handler))


def _states(listed: Iterable[ListedContainer]) -> frozenset[tuple[str, str]]:
    return frozenset((container.id, container.state) for container in listed)


def _machine_states(sandboxes: Mapping[str, ListedSandbox]) -> frozenset[tuple[str, bool]]:
    return frozenset((sandbox.id, sandbox.is_ready) for sandbox in _machines(sandboxes))
