"""The measured webhooks, with their commands and expected answers."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

from certs.issue import CA
from tests.environments.server.daemon import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PEERS = Path(__file__).parent / "peers"
OURS, BARE, FASTAPI, GO, CMK = "corepin", "bare ASGI", "FastAPI", "controller-runtime", "CMK"
ALONE = f"{OURS}, strangers"
CMK_MUTATIONS = """\
mutations:
  perPod:
    metadata: {annotations: {cmk.intel.com/resources-injected: "true", guard.corepin.io/pod: "true"}}
    spec:
      tolerations: [{key: cmk, operator: Equal, value: "true", effect: NoSchedule}]
      volumes:
        - {name: cmk-install-dir, hostPath: {path: /opt/bin, type: DirectoryOrCreate}}
        - {name: cmk-config-dir, hostPath: {path: /etc/cmk, type: DirectoryOrCreate}}
  perContainer:
    volumeMounts:
      - {name: cmk-install-dir, mountPath: /opt/bin, readOnly: true}
      - {name: cmk-config-dir, mountPath: /etc/cmk, readOnly: true}
"""


SIBLINGS = "siblings"  # pods of one ReplicaSet, the usual source of many pods at once
STRANGERS = "strangers"  # pods that have no containers in common, so that no cache hits


@dataclass(frozen=True)
class Contender:
    """One webhook: its name, its command, and the port that it will serve."""

    name: str
    command: tuple[str, ...]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    decides: bool = True  # its patch is computed, not constant
    pods: str = SIBLINGS  # the pods in its reviews
    keeps_connections: bool = True

    @property
    def url(self) -> str:
        """Its URL for reviews."""
        return f"https://127.0.0.1:{self.port}/mutate"

    @property
    def log_name(self) -> str:
        """The name of its log file."""
        return f"{self.name.replace(' ', '-')}.log"


@dataclass(frozen=True, slots=True)
class Pair:
    """The certificate and key that all contenders share (ECDSA P-256)."""

    ca: Path
    certificate: Path
    key: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of all webhooks except CMK's."""
        return ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))


def issue(folder: Path) -> Pair:
    """Write a new certificate and key for this machine."""
    ca = CA.create()
    leaf = ca.issue_cert("localhost", addresses=(IPv4Address("127.0.0.1"),))
    pair = Pair(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
    pair.ca.write_bytes(ca.cert)
    pair.certificate.write_bytes(leaf.cert)
    pair.key.write_bytes(leaf.key)
    return pair


def ours(pair: Pair) -> Contender:
    """Return corepin's process, started as in the image; metrics are on, and logs go to a file."""
    command = shutil.which("corepin", path=str(Path(sys.executable).parent)) or "corepin"
    port = free_port()
    listen = ("--listen", f"127.0.0.1:{port}", "--metrics-listen", f"127.0.0.1:{free_port()}")
    return Contender(OURS, (command, "webhook", *listen, *pair.flags), port)


def constants(pair: Pair, answer: Path) -> Iterator[Contender]:
    """Yield the two webhooks with a constant answer."""
    for name, app in ((BARE, "bare"), (FASTAPI, "fastapi")):
        port = free_port()
        command = (
            sys.executable,
            str(PEERS / "constant.py"),
            app,
            "--port",
            str(port),
            "--answer",
            str(answer),
        )
        yield Contender(name, (*command, *pair.flags), port, decides=False)


def go(pair: Pair, program: Path) -> Contender:
    """Return the Go webhook with GOMAXPROCS=1, because it has one CPU."""
    port = free_port()
    listen = ("--listen", f"127.0.0.1:{port}")
    return Contender(GO, (str(program), *listen, *pair.flags), port, {"GOMAXPROCS": "1"})


def cmk(pair: Pair, checkout: Path, folder: Path) -> Contender:
    """Return CMK's own webhook from a checkout; its requirements are in `.venv` there, or in this environment."""
    port = free_port()
    own = checkout / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    mutations = folder / "cmk-mutations.yaml"
    mutations.write_text(CMK_MUTATIONS)
    conf = folder / "cmk-server.yaml"
    conf.write_text(
        f"server:\n  binding-address: 127.0.0.1\n  port: {port}\n"
        f"  cert: {pair.certificate}\n  key: {pair.key}\n  mutations: {mutations}\n"
    )
    program = str(checkout / "cmk.py")
    command = (python, program, "webhook", f"--conf-file={conf}", "--insecure=True")
    return Contender(CMK, command, port, keeps_connections=False)  # HTTP/1.0
