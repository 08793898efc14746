"""An agent with the checkpoint of a later version changes nothing and reports it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from agent.config import AgentConfig
from agent.kernel.machine import machine_id
from agent.main import _work
from agent.reconcile.checkpoint import Saved
from corepin import cli
from corepin.run.agent import _config
from pinning.planning.ledger import Ledger
from tests.agent.checkpoints import written
from tests.environments.server.daemon import free_port
from tests.environments.waiting import background
from tests.pinning.machines import FLAT


def config(folder: Path, api: int, probes: int) -> AgentConfig:
    """Return the configuration of an agent on this machine with this API server port."""
    flags = ("--node", "n1", "--state-dir", str(folder), "--socket", "off", "--nri", "off")
    where = ("--api-server", f"http://127.0.0.1:{api}", "--metrics-listen", f"127.0.0.1:{probes}")
    return _config(cli.build_parser().parse_args(["agent", *flags, *where]))


async def waited(folder: Path) -> tuple[list[str], str]:
    """Run an agent until it has written to its node; return its requests and its readiness."""
    requests: list[str] = []
    written = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"(?i)content-length: (\d+)", head)
        requests.append(head + (await reader.readexactly(int(length[1] if length else 0))).decode())
        body = b'{"metadata":{"name":"n1","uid":"u","resourceVersion":"1"}}'
        writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        writer.close()
        if head.startswith("PATCH"):
            written.set()

    probes = free_port()
    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0) as api,
        background(_work(config(folder, api.sockets[0].getsockname()[1], probes), None)) as agent,
    ):
        await asyncio.wait([agent, asyncio.create_task(written.wait())], return_when=asyncio.FIRST_COMPLETED)
        assert not agent.done(), agent.exception()
        reader, writer = await asyncio.open_connection("127.0.0.1", probes)
        writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
        ready = (await reader.read()).decode()
        writer.close()
    return requests, ready


def test_checkpoint_of_a_later_version_is_reported(tmp_path: Path) -> None:
    """The node gets only a condition, readiness fails with the reason, and the file is unchanged."""
    checkpoint = tmp_path / "checkpoint.json"
    needs = frozenset({"interrupts"})
    checkpoint.write_bytes(
        written(Saved(machine_id(Path("/")), "b", FLAT, FLAT.online, Ledger(), needs=needs))
    )
    before = checkpoint.read_bytes()

    requests, ready = asyncio.run(waited(tmp_path))

    assert [request.split()[0] for request in requests] == ["GET", "PATCH"]
    patch = json.loads(requests[-1].partition("\r\n\r\n")[2])
    (condition,) = patch["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("CorepinDegraded", "CheckpointNeedsNewer")
    assert "the checkpoint needs interrupts" in condition["message"]
    assert ready.startswith("HTTP/1.1 503")
    assert "waiting: the checkpoint needs interrupts" in ready
    assert checkpoint.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", "lock"]
