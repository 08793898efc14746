"""`python -m tests.environments.server`: build the test servers that are missing; `--list` shows the existing ones."""

import argparse
import sys

from tests.environments.server.build import BuildFailed, GoMissing, build_missing, cache_folder, find
from tests.environments.server.catalog import SERVERS


def list_servers() -> None:
    """Print every server with its path, or that it is missing."""
    cache = cache_folder()
    for server in SERVERS:
        path = find(server, cache)
        state = f"{path.stat().st_size / 1e6:>4.0f} MB  {path}" if path else "not built"
        sys.stdout.write(f"{server.label:<28} {state}\n")


def main() -> int:
    """Run the command and return its exit status: 0 when all servers are there."""
    parser = argparse.ArgumentParser(prog="python -m tests.environments.server", description=__doc__)
    parser.add_argument("--list", action="store_true", help="show the servers and build nothing")
    if parser.parse_args().list:
        list_servers()
        return 0
    try:
        build_missing(sys.stdout)
    except (GoMissing, BuildFailed) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
