"""Flags for the webhook's configuration file and mutations file, shared by server and offline commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from corepin.flags import add_optional_flag

if TYPE_CHECKING:
    import argparse

    from webhook.config.reload import File

CONFIG: Final = Path("/etc/corepin/config/config.yaml")
MUTATIONS: Final = Path("/etc/corepin/config/mutations.yaml")


def add_rule_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose the rules."""
    add_optional_flag(
        parser, "--config", "FILE", f"the webhook's configuration; default: {CONFIG} if it exists"
    )
    add_optional_flag(
        parser,
        "--mutations",
        "FILE",
        f"CMK's mutations file, the additions to pods that use CMK; default: {MUTATIONS} if it exists, else built-in additions",
    )


def rule_files(args: argparse.Namespace) -> tuple[File, File]:
    """Return the configuration file and the mutations file; a file without its flag may be absent."""
    from webhook.config.reload import File

    def chosen(given: str | None, default: Path) -> File:
        return File(Path(given)) if given else File(default, optional=True)

    return chosen(args.config, CONFIG), chosen(args.mutations, MUTATIONS)
