"""Check that the agent can set containers' CPUs over NRI before they start; the remedy says how to enable it. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.doctor.check import finding, ok, unknown
from agent.nri.versions import SUPPORT, has_validators, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.doctor.check import Check
    from agent.nri.versions import Version

SUBJECT: Final = "NRI"
BIRTH: Final = "containers get their CPUs before their first instruction"
LATER: Final = (
    "containers get their CPUs as soon as their cgroup exists, usually before their first instruction, and"
    " the delay is measured"
)
MOUNT: Final = "for the agent's pod take the component nri, which mounts its folder (Helm: agent.nri: true)"


class Socket(StrEnum):
    """The state of the runtime's NRI socket."""

    ANSWERS = "answers"
    SILENT = "silent"  # the socket exists, and no process listens on it
    ABSENT = "absent"  # the folder exists, the socket does not
    NO_FOLDER = "no folder"  # the folder is not mounted, or was never created
    HIDDEN = "hidden"  # no permission to search the folder


class AgentNRI(NamedTuple):
    """The agent's connection to the runtime's NRI, as the agent reports it."""

    holds: bool = False  # the agent is connected, and sets the CPUs of each new container
    reason: str = ""  # why the runtime refused the agent; empty if it is connected or NRI is off
    is_not_listed: bool = False  # the runtime fails to list its containers to plugins


NOT_WANTED: Final = AgentNRI()


class _Switch(NamedTuple):
    """How to enable NRI in a runtime, by version."""

    since: Version
    remedy: str


_SWITCHES: Final = {  # how to switch NRI on, newest version first
    "containerd": (
        _Switch(
            SUPPORT["containerd"].nri_default,
            "containerd enables it by default from 2.0 on: remove `disable = true` from"
            ' [plugins."io.containerd.nri.v1.nri"] in its config.toml, and restart containerd',
        ),
        _Switch(
            SUPPORT["containerd"].nri,
            'write `disable = false` below [plugins."io.containerd.nri.v1.nri"] into the config.toml of containerd,'
            " and restart it",
        ),
    ),
    "cri-o": (
        _Switch(
            SUPPORT["cri-o"].nri_default,
            "CRI-O enables it by default from 1.30 on: remove `enable_nri = false` from [crio.nri] in its"
            " configuration, and restart it",
        ),
        _Switch(
            SUPPORT["cri-o"].nri,
            "write `enable_nri = true` below [crio.nri] into CRI-O's configuration, and restart it",
        ),
    ),
}


def nri_checks(runtime: str, socket: Socket, agent: AgentNRI | None) -> Iterator[Check]:
    """Yield the check of how containers get their CPUs: a finding if the runtime offers NRI and the agent lacks it."""
    if agent and agent.holds:
        yield ok(SUBJECT, f"the agent is connected: {BIRTH}")
    elif agent and not agent.reason:
        yield ok(SUBJECT, f"the agent does not use it (--nri off); {LATER}")
    elif agent and agent.is_not_listed:
        remedy = (
            "delete the pods with the largest environments, and set a quota for the ConfigMaps of their namespaces;"
            " the agent connects again within a minute"
        )
        yield finding(SUBJECT, f"the runtime refuses the agent ({agent.reason}); {LATER}", remedy)
    elif socket is Socket.SILENT:
        remedy = "restart the runtime, which creates its socket again; the agent reconnects by itself"
        yield finding(SUBJECT, f"its socket exists, but no process listens on it; {LATER}", remedy)
    elif socket is Socket.ANSWERS:
        yield _offered(agent)
    elif socket is Socket.HIDDEN:
        yield unknown(SUBJECT, "only root may look into its folder", "run this command as root")
    else:
        yield ok(SUBJECT, *_absent(runtime, socket))


def held_back_checks(runtime: str, *, holds: bool, is_guarded: bool) -> Iterator[Check]:
    """Yield the check of whether guard and NRI hold back containers that require their CPUs at start."""
    subject = "required CPUs"
    if not holds:
        remedy = "`gate: true` in the webhook's configuration has their pods wait in an init container"
        yield ok(
            subject,
            "containers that require CPUs start in the shared set while these are not free, unless their pods wait",
            remedy,
        )
    elif is_guarded:
        yield ok(
            subject,
            "no container starts without CPUs that it requires, also while the agent is not connected",
        )
    else:
        remedy = "the component guard holds them back then too"
        if has_validators(runtime) is False:
            support = SUPPORT[parsed(runtime)[0]]
            remedy += f", with {support.title} {'.'.join(map(str, support.validators))} or later"
        yield ok(
            subject,
            "no container starts without CPUs that it requires while the agent is connected; while it is not, such a"
            " container starts on any CPU",
            remedy,
        )


def _offered(agent: AgentNRI | None) -> Check:
    """Return the check for a runtime whose socket answers while the agent is not connected."""
    if agent is None:
        return ok(SUBJECT, f"its socket answers: with an agent {BIRTH}")
    remedy = "the logs of agent and runtime say more; the agent tries again by itself"
    return finding(
        SUBJECT, f"its socket exists, but the runtime refuses the agent ({agent.reason}); {LATER}", remedy
    )


def _absent(runtime: str, socket: Socket) -> tuple[str, str]:
    """Return the message about a missing socket, and the remedy."""
    name, version = parsed(runtime)
    switches = _SWITCHES.get(name, ())
    switch = next((switch for switch in switches if version >= switch.since), None)
    if not switches or not version:
        return f"its socket does not exist; {LATER}", ""
    if switch is None:
        since = ".".join(map(str, switches[-1].since))
        return f"{runtime} has none; {LATER}", f"it came with {name} {since}"
    mount = f"{MOUNT}; " if socket is Socket.NO_FOLDER else ""
    return f"its socket does not exist; {LATER}", f"{mount}{switch.remedy}"
