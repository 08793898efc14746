"""The program `containerd-shim-kata-v2`: containerd's task service, version 2, for one sandbox's containers.

`start` prints the address of the sandbox's shim, and becomes that shim if the sandbox is new. For every
container it reports QEMU's pid, as Kata does.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.environments.vm.kata import wire
from tests.environments.vm.kata.looks_like import look_like
from tests.environments.vm.kata.sandbox import Container, Sandbox
from tests.environments.vm.lifeline import wait_for_end

SANDBOX: Final = "io.kubernetes.cri.sandbox-id"
NAME: Final = "containerd-shim-kata-v2"
CREATED, RUNNING, STOPPED = 1, 2, 3  # states of a task


class Shim:
    """Answers containerd's calls about the tasks of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.over = threading.Event()
        self._lock = threading.RLock()

    def answer(self, call: wire.Request) -> dict[int, wire.Value]:
        """Return the fields of the answer to a call; raise Refused."""
        method = getattr(self, f"do_{call.method.lower()}", None)
        if method is None:
            raise wire.Refused(wire.UNIMPLEMENTED, f"{call.method} is not done here")
        fields: dict[int, wire.Value] = method(call)
        return fields

    @property
    def _pid(self) -> int:
        return self.sandbox.qemu.pid if self.sandbox.qemu else 0

    def _of(self, call: wire.Request) -> Container:
        container = self.sandbox.containers.get(call.text(1))
        if container is None:
            raise wire.Refused(wire.NOT_FOUND, f"no container {call.text(1)}: not found")
        return container

    def do_create(self, call: wire.Request) -> dict[int, wire.Value]:
        """Create a container; the first one is the sandbox itself."""
        key, bundle = call.text(1), call.text(2)
        cpus = read_spec(Path(bundle)).get("linux", {}).get("resources", {}).get("cpu", {}).get("cpus", "")
        outputs = [os.open(path, os.O_RDWR) for number in (6, 7) if (path := call.text(number))]
        with self._lock:
            self.sandbox.containers[key] = Container(key, bundle, cpus, outputs)
            self.sandbox.confine()
        return {1: self._pid}

    def do_start(self, call: wire.Request) -> dict[int, wire.Value]:
        """Start a container."""
        self._of(call).is_started = True
        return {1: self._pid}

    def do_state(self, call: wire.Request) -> dict[int, wire.Value]:
        """Return the state of a container."""
        container = self._of(call)
        state = RUNNING if container.is_started else CREATED
        if container.exit_status is None:
            return {1: container.id, 2: container.bundle, 3: self._pid, 4: state}
        ended: dict[int, wire.Value] = {10: container.exit_status, 11: wire.timestamp(container.exited_at)}
        return {1: container.id, 2: container.bundle, 3: self._pid, 4: STOPPED, **ended}

    def do_update(self, call: wire.Request) -> dict[int, wire.Value]:
        """Store a container's cpuset if the call has one, and write the union of all."""
        resources = call.fields.get(2, b"")
        assert isinstance(resources, bytes)
        value = wire.decode(resources).get(2, b"{}")
        assert isinstance(value, bytes)
        cpus = (json.loads(value).get("cpu") or {}).get("cpus", "")
        with self._lock:
            container = self._of(call)
            container.cpus = cpus or container.cpus
            self.sandbox.confine()
        return {}

    def do_kill(self, call: wire.Request) -> dict[int, wire.Value]:
        """End a container; the sandbox's own ends the machine."""
        container, number = self._of(call), call.fields.get(3, 9)
        assert isinstance(number, int)
        if container.id == self.sandbox.id:
            self.sandbox.end()
        container.end(128 + number)
        return {}

    def do_wait(self, call: wire.Request) -> dict[int, wire.Value]:
        """Answer when a container has exited."""
        container = self._of(call)
        container.over.wait()
        return {1: container.exit_status or 0, 2: wire.timestamp(container.exited_at)}

    def do_delete(self, call: wire.Request) -> dict[int, wire.Value]:
        """Forget an exited container; its cpuset no longer counts."""
        with self._lock:
            container = self._of(call)
            container.end(0)
            del self.sandbox.containers[container.id]
            self.sandbox.confine()
        return {1: self._pid, 2: container.exit_status or 0, 3: wire.timestamp(container.exited_at)}

    def do_connect(self, _: wire.Request) -> dict[int, wire.Value]:
        """Return the pids of the shim and of the sandbox."""
        return {1: os.getpid(), 2: self._pid, 3: "kata"}

    def do_pids(self, call: wire.Request) -> dict[int, wire.Value]:
        """Return the process of a container, which is QEMU."""
        self._of(call)
        return {1: wire.encode({1: self._pid})}

    def do_stats(self, call: wire.Request) -> dict[int, wire.Value]:
        """Return nothing."""
        self._of(call)
        return {}

    do_closeio = do_resizepty = do_stats

    def do_shutdown(self, _: wire.Request) -> dict[int, wire.Value]:
        """Exit after the last container."""
        if not self.sandbox.containers:
            self.over.set()
        return {}


def serve(shim: Shim, listener: socket.socket) -> None:
    """Serve every connection until the shim ends."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_talk, args=(shim, connection), daemon=True).start()


def _talk(shim: Shim, connection: socket.socket) -> None:
    lock = threading.Lock()
    while call := wire.receive(connection):
        threading.Thread(target=_answer, args=(shim, connection, lock, call), daemon=True).start()


def _answer(shim: Shim, connection: socket.socket, lock: threading.Lock, call: wire.Request) -> None:
    try:
        frame = wire.answer(call.stream, wire.encode(shim.answer(call)))
    except wire.Refused as refused:
        frame = wire.refusal(call.stream, refused.code, str(refused))
    except Exception as error:  # noqa: BLE001 any failure is the answer to its caller
        frame = wire.refusal(call.stream, wire.UNKNOWN, f"{call.method}: {error!r}")
    with lock:
        connection.sendall(frame)


def read_spec(bundle: Path) -> dict[str, Any]:
    """Return the OCI configuration of a container."""
    spec: dict[str, Any] = json.loads((bundle / "config.json").read_text())
    return spec


def start(options: dict[str, str]) -> None:
    """Print the address of the sandbox's shim, and become it if the sandbox is new."""
    spec = read_spec(Path.cwd())
    sandbox = (spec.get("annotations") or {}).get(SANDBOX, options["id"])
    folder = Path(options["address"]).parent / "kata" / sandbox[:12]
    address = folder / "shim.sock"
    if sandbox != options["id"]:
        sys.stdout.write(f"unix://{address}")
        return
    folder.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen()
    if os.fork() == 0:
        _detach(folder / "shim.log")
        run(Sandbox(sandbox, spec, folder), listener)
    sys.stdout.write(f"unix://{address}")


def end_with_test(shim: Shim) -> None:
    """Exit when the test that runs containerd ends."""
    wait_for_end(shim.sandbox.folder.parents[1])
    shim.over.set()


def _detach(log: Path) -> None:
    os.setsid()
    os.chdir("/")
    out = os.open(log, os.O_WRONLY | os.O_CREAT)
    for stream, replaced in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, out)):
        os.dup2(replaced, stream)


def run(sandbox: Sandbox, listener: socket.socket) -> None:
    """Run as the shim of a sandbox until a call ends it."""
    look_like(NAME[:15], [f"/opt/kata/bin/{NAME}", *sys.argv[1:-1]])
    sandbox.start()
    shim = Shim(sandbox)
    for target, words in ((serve, (shim, listener)), (end_with_test, (shim,))):
        threading.Thread(target=target, args=words, daemon=True).start()
    shim.over.wait()
    sandbox.end()
    sandbox.remove()
    shutil.rmtree(sandbox.folder, ignore_errors=True)
    os._exit(0)


def main() -> None:
    """Handle containerd's commands: `-namespace N -address A -publish-binary P -id I start`, or `delete`."""
    words = sys.argv[1:]
    if "start" in words:
        start({name.lstrip("-"): value for name, value in pairwise(words) if name[:1] == "-"})
    elif "delete" in words:
        sys.stdout.buffer.write(wire.encode({2: 137, 3: wire.now()}))
    else:
        sys.exit(f"{NAME}: {words} is not done here")
