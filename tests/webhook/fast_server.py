"""`corepin webhook` for tests: the same process, only with shorter times. First argument: the limits as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from corepin.run import webhook as verb
from logs import formatter
from webhook.server import process
from webhook.server.listener import Limits
from webhook.server.loader import DeciderLoader

POLL_SECONDS = 0.02


def main() -> None:
    """Serve as the command would."""
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    limits = Limits(**json.loads(sys.argv[1]))
    options = dataclasses.replace(
        verb._options(parser.parse_args(["webhook", *sys.argv[2:]])), poll_seconds=POLL_SECONDS, limits=limits
    )
    formatter.configure()
    process.run(options, DeciderLoader(options.config, options.mutations))


if __name__ == "__main__":
    main()
