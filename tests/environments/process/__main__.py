"""`python -m tests.environments.process --root DIR --cpus N`: run a simulated machine until SIGTERM.

It listens on DIR/machine.sock. A request is a JSON line {"op": "read", ...}; the answer is {"ok": VALUE} or
{"error": "gone: ..."}. Several clients can connect and disconnect at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from pinning.errors import PinningError
from tests.environments.process.state import Simulated, Wrong, operations
from tests.environments.process.tree import regular

LINE_LIMIT = 2**24


def answer(machine: Simulated, line: bytes) -> dict[str, Any]:
    """Execute the operation of one line."""
    try:
        request = json.loads(line)
        operation = operations(machine)[request.pop("op")]
        return {"ok": operation(**request)}
    except Wrong as no:
        return {"error": str(no)}
    except (PinningError, ValueError, KeyError, TypeError, AttributeError) as problem:
        return {"error": f"invalid: {problem!r}"}


async def serve(machine: Simulated, path: Path) -> None:
    """Answer clients until cancelled; the socket appears when the machine is ready."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(answer(machine, line)).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass  # clients may be killed at any time
        finally:
            writer.close()

    server = await asyncio.start_unix_server(talk, path, limit=LINE_LIMIT)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Run the machine."""
    parser = argparse.ArgumentParser(prog="python -m tests.environments.process", description=__doc__)
    parser.add_argument(
        "--root", type=Path, required=True, help="directory that stands for /, and holds machine.sock"
    )
    parser.add_argument("--cpus", type=int, default=16, help="16 to 512")
    parser.add_argument("--threads", type=int, default=2, help="of each core")
    args = parser.parse_args()
    asyncio.run(serve(Simulated(args.root, regular(args.cpus, args.threads)), args.root / "machine.sock"))


if __name__ == "__main__":
    main()
