"""Original values of kernel settings that the agent changed, in a file beside the checkpoint.

An original is saved before the value is changed, so that the next agent can restore it. A reboot resets the values, so
the file is then ignored. A file that cannot be read is dropped, because no invented value may be restored.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from agent.errors import Refused
from pinning.errors import PinningError
from pinning.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

VERSION: Final = 1

logger = logging.getLogger(__name__)


class Restorable:
    """The originals of one kind of kernel value by key, as texts; each change is written at once."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._originals = _load(path, boot_id)

    @property
    def originals(self) -> Mapping[str, str]:
        """The saved originals by key."""
        return self._originals

    def remember(self, originals: Mapping[str, str]) -> None:
        """Save originals, replacing those of the same keys; raise Refused if the file cannot be written."""
        self._store({**self._originals, **originals})

    def forget(self, keys: Iterable[str]) -> None:
        """Drop the originals of these keys; raise Refused if the file cannot be written."""
        dropped = set(keys)
        self._store({key: text for key, text in self._originals.items() if key not in dropped})

    def _store(self, originals: dict[str, str]) -> None:
        if originals == self._originals:
            return
        try:
            self._write(originals)
        except OSError as error:
            raise Refused(f"{self._path}: {error.strerror}") from error
        self._originals = originals

    def _write(self, originals: dict[str, str]) -> None:
        if not originals:
            self._path.unlink(missing_ok=True)
            return
        text = json.dumps({"version": VERSION, "bootID": self._boot_id, "originals": originals})
        beside = self._path.with_suffix(".new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self._path)


def _load(path: Path, boot_id: str) -> dict[str, str]:
    try:
        saved: Any = parse_json(path.read_text(encoding="utf-8"))
        if saved["version"] != VERSION or saved["bootID"] != boot_id:
            return {}
        return {str(key): str(text) for key, text in saved["originals"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, KeyError, TypeError, ValueError, AttributeError, PinningError) as error:
        facts = {"file": str(path), "reason": repr(error)}
        logger.warning("saved kernel values dropped", extra={"facts": facts})
        return {}
