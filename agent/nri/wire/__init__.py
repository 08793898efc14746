"""The protocol of NRI plugins, for plugins in Python: it imports nothing of corepin and could be published alone.

`mux`, `ttrpc` and `session` turn bytes into values and back, without a socket. `service` answers the methods by a
plugin's handlers, `connection` serves one socket, `client` keeps the plugin registered. README.md shows how to use it.
"""

from agent.nri.wire.client import Client, Status
from agent.nri.wire.connection import Connection, Limits
from agent.nri.wire.errors import Disconnected, EventsRefused, ProtocolError, Reject, WireError
from agent.nri.wire.handlers import (
    CPUSET_CPUS,
    CPUSET_MEMS,
    GUARD_EVENTS,
    WORKER_EVENTS,
    WORKER_EVENTS_OLD,
    Event,
    Handlers,
    PluginName,
    mask,
)

__all__ = [
    "CPUSET_CPUS",
    "CPUSET_MEMS",
    "GUARD_EVENTS",
    "WORKER_EVENTS",
    "WORKER_EVENTS_OLD",
    "Client",
    "Connection",
    "Disconnected",
    "Event",
    "EventsRefused",
    "Handlers",
    "Limits",
    "PluginName",
    "ProtocolError",
    "Reject",
    "Status",
    "WireError",
    "mask",
]
