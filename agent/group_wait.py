"""Start with the configuration of the node's CPU group; while it is missing, /readyz and the Node show why."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from prometheus_client import CollectorRegistry

from agent.access import open_api
from agent.group_start import GroupMemory, GroupStart, ask_label
from agent.report.node import NODES
from agent.report.waiting import write_waiting
from agent.serve.endpoints import STARTING, Endpoints, listen_http
from pinning.planning.cpu_groups import Waiting
from pinning.planning.node_config import DEFAULT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from agent.config import AgentConfig
    from agent.group_start import ConfigFiles
    from apiserver.client import Api

# between repeated writes of the condition, which another program may have changed
WRITE_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)


async def started_with(config: AgentConfig, files: ConfigFiles | None) -> AgentConfig:
    """Wait until this node's group has a configuration, and return it."""
    if files is None:
        return config
    async with _opened(config, files) as (api, start):
        group = await start.choose()
        if isinstance(group, Waiting):
            group = await _wait(config, api, start)
    return _with(config, files, group)


async def reset_with(config: AgentConfig, files: ConfigFiles | None) -> AgentConfig:
    """Return the configuration of this node's group for uninstall, or the defaults where a start would wait."""
    if files is None:
        return config
    async with _opened(config, files) as (_, start):
        group = await start.choose()
    if isinstance(group, Waiting):
        logger.warning("reset without a configuration", extra={"facts": {"reason": group.message}})
        return replace(config, config=DEFAULT)
    return _with(config, files, group)


@asynccontextmanager
async def _opened(config: AgentConfig, files: ConfigFiles) -> AsyncIterator[tuple[Api, GroupStart]]:
    """Yield an API client, closed when the block ends, and the GroupStart that uses it."""
    api = open_api(config)
    memory = GroupMemory(config.state_dir, config.node)
    try:
        yield api, GroupStart(files, memory, partial(ask_label, api, f"{NODES}/{config.node}"))
    finally:
        await api.close()


def _with(config: AgentConfig, files: ConfigFiles, group: str) -> AgentConfig:
    logger.info("configuration chosen", extra={"facts": {"group": group or "none"}})
    return replace(config, config=files.load(group), group=group)


async def _wait(config: AgentConfig, api: Api, start: GroupStart) -> str:
    """Wait for the group's file and return the group; until then the process is alive, not ready, and says why."""
    async with _not_ready(config, lambda: start.waiting):
        return await start.wait(partial(write_waiting, api, config.node))


async def wait_for_newer(config: AgentConfig, message: str) -> NoReturn:
    """Change no container and wait until a newer agent, which can read the checkpoint, replaces this one."""
    waiting = Waiting("CheckpointNeedsNewer", message)
    logger.error("waiting for a later version of corepin", extra={"facts": {"reason": message}})
    api = None if config.pods_dir else open_api(config)
    async with _not_ready(config, lambda: waiting):
        while True:
            if api:
                await write_waiting(api, config.node, waiting)
            await asyncio.sleep(WRITE_SECONDS)


@asynccontextmanager
async def _not_ready(config: AgentConfig, waiting: Callable[[], Waiting | None]) -> AsyncIterator[None]:
    """Answer probes: the process is alive, and not ready because it waits."""

    def reason() -> str:
        return f"waiting: {now.message}" if (now := waiting()) else STARTING

    endpoints = Endpoints(lambda: None, CollectorRegistry(), reason)
    async with AsyncExitStack() as stack:
        if config.listen:
            await stack.enter_async_context(await listen_http(endpoints, *config.listen))
        yield
