"""Read the kubelet's effective configuration from its `/configz`: CPU policy and reserved CPUs.

The agent reads it once, at start, and only if the operator enables that. It needs only the right `nodes/configz`;
`nodes/proxy` would give access to every container of the node. If the kubelet does not answer, the defaults apply.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from agent.config import CONFIGZ, USER_AGENT
from agent.errors import AgentError, Refused
from agent.kubelet.policy import policy_of
from apiserver.backoff import Backoff
from apiserver.client import Api
from apiserver.errors import APIError, Unavailable
from pinning.contract import KubeletPolicy, ReserveSource
from pinning.errors import BadContract, BadCPUList, BadQuantity
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.node_sets import check_machine
from pinning.pods.quantity import parse_quantity
from pinning.truncate import VALUE, truncate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx

    from apiserver.access import Access
    from pinning.machine.topology import Topology
    from pinning.planning.node_config import NodeConfig

TRIES: Final = 3
STRICT_OPTION: Final = "strict-cpu-reservation"
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})  # strconv.ParseBool
REMEDY: Final = (
    "give the agent's account `get` on nodes/configz (kubelet 1.33 or later; never nodes/proxy), and let the cluster's"
    " CA sign the kubelet's certificate (serverTLSBootstrap); or state `reserved` in the node configuration"
)

logger = logging.getLogger(__name__)


class KubeletConfig(NamedTuple):
    """The kubelet's CPU policy, its reserved CPUs, and whether it binds memory."""

    policy: KubeletPolicy
    reserved: CPUSet  # CPUs reserved by the kubelet; empty: none
    memory_policy: KubeletPolicy = KubeletPolicy.UNKNOWN
    is_strict: bool = False  # strict-cpu-reservation: no container runs on the reserved CPUs
    topology_manager: str = ""  # policy of the kubelet's topology manager; empty: not known


class _Config(msgspec.Struct, rename="camel"):
    cpu_manager_policy: str = ""
    cpu_manager_policy_options: dict[str, str] | None = None
    memory_manager_policy: str = ""
    topology_manager_policy: str = ""
    reserved_system_cpus: str = msgspec.field(name="reservedSystemCPUs", default="")
    kube_reserved: dict[str, str] | None = None
    system_reserved: dict[str, str] | None = None


class _Document(msgspec.Struct):
    kubeletconfig: _Config


def read_configz(document: bytes, topology: Topology) -> KubeletConfig:
    """Parse a configz document for a machine; raise Refused if it is invalid."""
    try:
        config = msgspec.json.decode(document, type=_Document).kubeletconfig
        memory_policy = policy_of(config.memory_manager_policy)
        policy, reserved = policy_of(config.cpu_manager_policy), _reserved(config, topology)
        strict = (config.cpu_manager_policy_options or {}).get(STRICT_OPTION, "")
        manager = truncate(config.topology_manager_policy, VALUE)
        return KubeletConfig(policy, reserved, memory_policy, strict in _TRUE, manager)
    except (msgspec.DecodeError, RecursionError, BadCPUList, BadQuantity) as error:
        raise Refused(f"the kubelet's configz cannot be understood: {error}") from error


def _reserved(config: _Config, topology: Topology) -> CPUSet:
    """Return `reservedSystemCPUs`; without it, whole cores for the reserved amounts of CPU, lowest CPUs first."""
    if config.reserved_system_cpus:
        return CPUSet.parse(config.reserved_system_cpus)
    amounts = (config.kube_reserved or {}, config.system_reserved or {})
    missing = ceil(sum(parse_quantity(amount.get("cpu", "0")) for amount in amounts))
    taken = []
    for cpus in sorted((core.cpus for core in topology.cores), key=CPUSet.lowest):
        if missing <= 0:
            break
        usable = (
            cpus & topology.online
        ) - topology.isolated  # the kubelet itself does not run on isolated CPUs
        missing -= len(usable)
        taken += [cpus] if usable else []
    return union(taken) if taken else EMPTY


def adopt(config: NodeConfig, kubelet: KubeletConfig, topology: Topology, universe: CPUSet) -> NodeConfig:
    """Adopt the kubelet's reserved CPUs if the operator configured none, unless they leave no CPU."""
    adopted = config
    if config.reserved is None and kubelet.reserved:
        adopted = replace(config, reserved=kubelet.reserved, reserve_source=ReserveSource.KUBELET)
    if config.strict_reserved is None and kubelet.is_strict:
        adopted = replace(adopted, strict_reserved=True)
    if adopted == config:
        return config
    facts = {"reserved": str(adopted.reserved or ""), "strictReserved": bool(adopted.strict_reserved)}
    try:
        check_machine(topology, universe, adopted)
    except BadContract as problem:
        logger.warning(
            "the kubelet's reserved CPUs are not used", extra={"facts": {**facts, "reason": str(problem)}}
        )
        return config
    logger.info("the kubelet's reserved CPUs are used", extra={"facts": facts})
    return adopted


async def ask_kubelet(
    access: Access,
    topology: Topology,
    transport: httpx.AsyncBaseTransport | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> KubeletConfig | None:
    """Return the configuration of the kubelet at `access`; log the remedy and return None if it cannot be read."""
    try:
        api = Api(access, USER_AGENT, transport)
    except APIError as error:  # no CA is configured
        _log_silence(str(error))
        return None
    try:
        return read_configz(await _fetch(api, sleep), topology)
    except (AgentError, APIError) as error:
        _log_silence(str(error))
        return None
    finally:
        await api.close()


async def _fetch(api: Api, sleep: Callable[[float], Awaitable[None]]) -> bytes:
    backoff = Backoff(1.0)
    for _ in range(TRIES - 1):
        try:
            return await api.get(CONFIGZ)
        except Unavailable as error:
            wait = backoff.next()
            facts = {"reason": str(error), "retry_seconds": round(wait, 1)}
            logger.info("the kubelet does not answer yet", extra={"facts": facts})
            await sleep(wait)
    return await api.get(CONFIGZ)


def _log_silence(reason: str) -> None:
    facts = {"reason": reason, "remedy": REMEDY}
    logger.warning("the kubelet's configuration is not known, defaults are used", extra={"facts": facts})
