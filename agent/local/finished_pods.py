"""File of the pods' final phases, so that the next agent does not run a finished job again."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from pinning.json_text import parse_json
from pinning.pods.phase import FINAL_PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE: Final = "finished.json"  # in the agent's state directory

logger = logging.getLogger(__name__)


def read_finished(path: Path) -> dict[str, str]:
    """Return the final phases by pod uid; empty for a damaged file, which is logged."""
    try:
        phases = parse_json(path.read_bytes())
        return {uid: phase for uid, phase in phases.items() if phase in FINAL_PHASES}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        facts = {"file": str(path), "reason": repr(error)}
        logger.warning("finished pods are not known and run again", extra={"facts": facts})
        return {}


def write_finished(path: Path, phases: Mapping[str, str]) -> None:
    """Replace the file atomically; a failure is only logged, because the file is not read before the next start."""
    beside = path.with_suffix(".new")
    try:
        beside.write_text(json.dumps(phases), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        facts = {"file": str(path), "reason": str(error)}
        logger.warning("finished pods are not remembered", extra={"facts": facts})
