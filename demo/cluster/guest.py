"""Inside the emulated machine: start the cluster, report address and credentials to the host, and stay."""

from __future__ import annotations

import os
import signal
import traceback
from contextlib import ExitStack
from typing import Final

from tests.environments.guest import machine
from tests.environments.guest.inside import report
from tests.environments.guest.start import be_patient, start_node, start_servers

DOOR: Final = "10.0.2.15"  # the address of QEMU's network for the machine
SERVED: Final = "served"  # fact with the credentials of the API server


def main() -> None:
    """Run until the machine powers off; print failures on the machine's console."""
    be_patient()
    with ExitStack() as stack:
        try:
            machine.prepare()
            machine.make_door(DOOR)
            server = stack.enter_context(start_servers(("--bind-address=0.0.0.0",)))
            report(SERVED, ca=server.ca_file.read_text(), token=server.admin_token)
            start_node(stack, server)
            signal.pause()
        except Exception:  # noqa: BLE001 whatever it was, the console says it
            traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
