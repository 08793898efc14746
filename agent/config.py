"""The agent's configuration from its flags: one frozen value, validated once at start."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from pinning.contract import AGENT_NAMESPACE, CDI_FOLDER, DEBUGFS, IRQBALANCE, KUBELET_ROOT, NRI_SOCKET
from pinning.errors import BadContract, BadQuantity
from pinning.planning.node_config import DEFAULT, NodeConfig
from pinning.planning.requests import SIDECAR, Amount
from pinning.pods.quantity import parse_quantity

RUNTIMES: Final = ("cri", "local")
CONFIGZ: Final = "/configz"
USER_AGENT: Final = "corepin-agent"  # also the field manager, which admission policies check
_BARE_IPV6: Final = re.compile(r"https://([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*):(?=[0-9]+/)")


@dataclass(frozen=True, slots=True)
class ApiFlags:
    """API server and credentials, for agents outside of a pod."""

    url: str
    ca_file: Path | None = None
    token_file: Path | None = None

    def __post_init__(self) -> None:
        parts = _split(self.url)
        if parts is None or parts.scheme not in {"http", "https"}:
            raise BadContract(
                f"--api-server: {self.url!r} is not an address: write for example https://HOST:6443"
            )


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options for the fields of the Node object."""

    feature_gates: frozenset[str] = frozenset()  # CPUManager: label the node for KubeVirt
    cmk_taint: bool = False
    overcommit_taint: bool = False
    sidecar: Amount = SIDECAR
    topology: bool = False  # publish the node's NodeResourceTopology
    near_cpus: bool = False  # publish the numbers of free CPUs on the NUMA nodes of free devices


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The parsed flags of `corepin agent`. `root` is where the host's `/` is mounted."""

    node: str
    state_dir: Path
    runtime: str = "cri"
    runtime_endpoint: Path | None = None  # None: the first usual socket that exists
    pods_dir: Path | None = None  # folder of pod manifests; None: pods come from the API server
    root: Path = Path("/")
    cgroup_root: Path = Path("/sys/fs/cgroup")  # mount point of the cgroup hierarchies
    debugfs: Path = Path(DEBUGFS)  # mount point of debugfs, if it is mounted
    interrupts: Path = Path("/proc/interrupts")  # the host's, because runtimes mask it in containers
    irq: Path | None = None  # the host's /proc/irq, writable; None: interrupts are not moved
    workqueues: Path | None = None  # the host's masks of workqueues, writable; None: not moved
    power: Path | None = None  # the host's /sys/devices/system/cpu, writable; None: not limited
    irqbalance: Path = Path(IRQBALANCE)  # the folder of irqbalance's socket
    kubelet_cgroup_root: str = "/"  # the kubelet's `cgroupRoot`, the parent of the cgroup of all pods
    nri: Path | None = None  # the runtime's NRI socket; None: NRI is off
    # Install directory of the command cmk and its socket; None: no command is installed.
    cmk_install_dir: Path | None = None
    config: NodeConfig = DEFAULT
    kubelet_state: Path | None = None
    # The kubelet's address, https://HOST:PORT, to read /configz from at start; None: not read.
    kubelet_url: str | None = None
    listen: tuple[str, int] | None = None  # host and port of health and metrics; None: not served
    socket: Path | None = None  # socket that serves the agent's state as JSON; None: not served
    api: ApiFlags | None = None  # None: the service account of the agent's pod
    namespace: str = AGENT_NAMESPACE  # namespace of CMK's ConfigMap, to which the agent writes the pools
    node_options: NodeOptions = NodeOptions()
    group: str = ""  # node group whose file `config` was read from; empty: no group
    cmk_reports: bool = False  # write the objects Cmk-nodereport and Cmk-reconcilereport of this node
    dra: bool = False  # serve ResourceClaims for CPUs as their DRA driver
    near_dra: bool = False  # look up the NUMA nodes of devices of other drivers' ResourceClaims
    kubelet_root: Path = Path(KUBELET_ROOT)  # where the kubelet has plugins/ and plugins_registry/
    cdi: Path = Path(CDI_FOLDER)  # where the runtime reads CDI files

    def __post_init__(self) -> None:
        if not self.node:
            raise BadContract(
                "--node: the name of this node is not known: give it, spelled as in the API server"
            )
        if self.runtime not in RUNTIMES:
            raise BadContract(f"--runtime: {self.runtime!r} is unknown: write {' or '.join(RUNTIMES)}")
        if self.runtime == "local" and self.pods_dir is None:
            raise BadContract("--runtime local starts the pods of a directory: name it with --pods-dir")
        if self.kubelet_url and self.pods_dir and not self.api:
            raise BadContract(
                "--kubelet-configz: without an API server the agent has no token for the kubelet: name one with"
                " --api-server, --api-ca and --api-token"
            )

    @property
    def keeps_quiet(self) -> bool:
        """Return whether the component `quiet` is installed, and the operator has enabled a part of it."""
        return self.irq is not None and self.config.keeps_quiet


def parse_sidecar(text: str) -> Amount:
    """Parse the value CPU,MEMORY of --sidecar-resources, the webhook's `sidecarResources`."""
    cpu, _, memory = (part.strip() for part in text.partition(","))
    try:
        is_amount = parse_quantity(cpu) > 0 and parse_quantity(memory) > 0
    except BadQuantity:
        is_amount = False
    if not is_amount:
        raise BadContract(f"--sidecar-resources: {text!r} is not CPU,MEMORY: write for example 200m,64M")
    return cpu, memory


def parse_configz(url: str | None) -> str | None:
    """Return the server part of https://NODE:10250/configz; raise BadContract for any other address.

    NODE may be an IPv6 address without brackets, which is how the downward API writes a node's address.
    """
    if not url or url == "off":
        return None
    parts = _split(_BARE_IPV6.sub(r"https://[\1]:", url))
    if parts is None or (parts.scheme, parts.path, parts.query) != ("https", CONFIGZ, ""):
        raise BadContract(
            f"--kubelet-configz: {url!r} is not the kubelet of a node: write https://NODE:10250/configz, or off"
        )
    return f"https://{parts.netloc}"


def parse_cmk_reports(text: str) -> bool:
    """Return whether the value of --cmk-reports is `on`; raise BadContract unless it is `on` or `off`."""
    if text not in {"on", "off"}:
        raise BadContract(f"--cmk-reports: {text!r} is unknown: write on or off")
    return text == "on"


def parse_dra(text: str, nri: Path | None) -> bool:
    """Return whether --dra is `on`; raise BadContract unless it is `on` or `off`, and for `on` without NRI.

    Over NRI a container gets its claimed CPUs when it is created.
    """
    if text not in {"on", "off"}:
        raise BadContract(f"--dra: {text!r} is unknown: write on or off")
    if text == "on" and nri is None:
        raise BadContract("--dra on needs NRI: write --nri auto, or --dra off")
    return text == "on"


def parse_near_dra(text: str) -> bool:
    """Return whether the value of --near-dra is `on`; raise BadContract unless it is `on` or `off`."""
    if text not in {"on", "off"}:
        raise BadContract(f"--near-dra: {text!r} is unknown: write on or off")
    return text == "on"


def parse_nri(text: str) -> Path | None:
    """Parse auto, off or the path of a socket; auto is the usual path, which need not exist yet."""
    if text == "off":
        return None
    if text != "auto" and not text.startswith("/"):
        raise BadContract(f"--nri: {text!r} is not a path: write auto, off, or a socket such as {NRI_SOCKET}")
    return Path(NRI_SOCKET if text == "auto" else text)


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL that names a host, and a port if any; None for another text."""
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0  # `port` raises ValueError
    except ValueError:
        return None
    return parts if is_whole else None
