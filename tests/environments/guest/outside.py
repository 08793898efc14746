"""Control plane on the host for a node in the guest, because it is slow under emulation."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trustme

from tests.environments.cluster.start import _program
from tests.environments.server.apiserver import ADMIN, ApiServer
from tests.environments.server.catalog import KUBE_SCHEDULER, NEWEST
from tests.environments.server.control_plane import start_control_plane, start_scheduler
from tests.environments.server.start import HOST_OF_GUEST, require_servers

if TYPE_CHECKING:
    from collections.abc import Iterator

DOOR: Final = "10.0.2.15"  # the address of QEMU's user network for the machine
# The guest can connect to the host; it runs only programs of the tests.
DEVICES: Final = ("-netdev", "user,id=door", "-device", "virtio-net-pci,netdev=door")
_FILE: Final = "api.json"


@contextmanager
def servers_outside(folder: Path) -> Iterator[ApiServer]:
    """Run etcd, kube-apiserver and the scheduler on the host; write URL, CA and token for the guest into a folder."""
    own = folder / "api"
    own.mkdir()
    with ExitStack() as stack:
        plane = stack.enter_context(start_control_plane(own))
        server = plane.server
        stack.enter_context(start_scheduler(_program(KUBE_SCHEDULER), server))
        given = {
            "url": f"https://{HOST_OF_GUEST}:{plane.port}",
            "token": server.admin_token,
            "ca": server.authority.cert_pem.bytes().decode(),
            "key": server.authority.private_key_pem.bytes().decode(),
        }
        (folder / _FILE).write_text(json.dumps(given))
        yield server


def reach(folder: Path, own: Path) -> ApiServer:
    """In the guest, return the API server that the host wrote into a folder; create kubeconfigs in `own`."""
    given = json.loads((folder / _FILE).read_text())
    authority = trustme.CA.from_pem(given["ca"].encode(), given["key"].encode())
    own.mkdir()
    server = ApiServer(NEWEST, given["url"], own, require_servers(NEWEST), authority, given["token"])
    authority.cert_pem.write_to_path(server.ca_file)
    server.write_kubeconfig(ADMIN, {"token": server.admin_token})
    return server
