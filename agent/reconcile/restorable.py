"""Original values of kernel settings that the agent changed, in a file beside the checkpoint.

An original is saved before the value is changed, so that the next agent can restore it. A reboot resets the
values, so a file of another boot is ignored, even one that a power failure has emptied. A file that cannot be used
for another reason is kept as it is, because it has the only copy of the originals. Until it can be read, nothing
is saved, so that no value is changed.
"""

from __future__ import annotations

import json
import logging
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from agent.errors import Refused
from pinning.errors import PinningError
from pinning.json_text import parse_json
from pinning.truncate import NAME, truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

VERSION: Final = 1
_BOOT_ID: Final = re.compile(rb'"bootID": "([^"]+)"')  # found even in a truncated file
_DAMAGES: Final = (KeyError, TypeError, ValueError, AttributeError, PinningError)

_Value = TypeVar("_Value")

logger = logging.getLogger(__name__)


class Restorable:
    """The originals of one kind of kernel value by key, as texts; each change is written at once."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._check: Callable[[str, str], object] | None = None
        self._originals: dict[str, str] = {}
        self._problem = ""
        self._load()

    def require(self, check: Callable[[str, str], object]) -> None:
        """Treat the file as damaged if `check` raises one of `_DAMAGES` for a key with its text."""
        self._check = check
        self._load()

    @property
    def problem(self) -> str:
        """Why the file cannot be used, with the remedy; empty if it can."""
        return self._problem

    def reread(self) -> None:
        """Read the file again if it could not be used; raise Refused while that is so."""
        if self._problem:
            self._load()
        if self._problem:
            raise Refused(self._problem)

    @property
    def originals(self) -> Mapping[str, str]:
        """The original kernel values that are saved, by key."""
        return self._originals

    def remember(self, originals: Mapping[str, str]) -> None:
        """Save originals, replacing those of the same keys; raise Refused if the file cannot be written."""
        self._store({**self._originals, **originals})

    def replace(self, originals: Mapping[str, str]) -> None:
        """Save these originals instead of all others; raise Refused if the file cannot be written."""
        self._store(dict(originals))

    def forget(self, keys: Iterable[str]) -> None:
        """Drop the originals of these keys; raise Refused if the file cannot be written."""
        dropped = set(keys)
        self._store({key: text for key, text in self._originals.items() if key not in dropped})

    def _store(self, originals: dict[str, str]) -> None:
        if originals == self._originals:
            return
        if self._problem:
            raise Refused(self._problem)
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

    def _load(self) -> None:
        try:
            self._originals, problem = self._read(), ""
        except FileNotFoundError:
            self._originals, problem = {}, ""
        except OSError as error:
            self._originals, problem = {}, f"{self._path}: {error.strerror}: let the agent read it"
        except _DAMAGES as error:
            reason = truncate(repr(error), NAME)
            self._originals, problem = {}, f"{self._path} is damaged: {reason}: restart the node"
            if self._is_of_another_boot():
                problem = ""
        except Refused as error:
            self._originals, problem = {}, str(error)
        if problem and problem != self._problem:
            logger.error("saved kernel values cannot be used", extra={"facts": {"reason": problem}})
        self._problem = problem

    def _is_of_another_boot(self) -> bool:
        """Return whether a damaged file was written before this boot.

        Files are not flushed, so that a power failure may leave an empty one, which names no boot.
        """
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        with suppress(OSError):
            return self._path.stat().st_mtime < booted
        return False

    def _read(self) -> dict[str, str]:
        """Return the originals in the file; raise one of `_DAMAGES`, Refused for one of a later version."""
        content = self._path.read_bytes()
        found = _BOOT_ID.search(content)
        if found and found[1] != self._boot_id.encode():
            return {}
        saved: Any = parse_json(content.decode())
        if saved["version"] != VERSION:
            raise Refused(
                f"{self._path} has version {truncate(str(saved['version']), NAME)}, and this corepin reads version"
                f" {VERSION}: install the corepin that wrote it, or restart the node"
            )
        if saved["bootID"] != self._boot_id:
            return {}
        for key, text in saved["originals"].items():
            if not isinstance(text, str):
                raise TypeError(key)
            if self._check:
                self._check(key, text)
        return dict(saved["originals"])


class RestorableValue(Generic[_Value]):
    """The only value in a `Restorable`, at first as an earlier agent saved it; None if there is nothing to undo."""

    def __init__(
        self, saved: Restorable, key: str, parse: Callable[[str], _Value], to_text: Callable[[_Value], str]
    ) -> None:
        self._saved = saved
        self._key = key
        self._parse = parse
        self._to_text = to_text
        self._value: _Value | None = None
        self._is_read = False
        saved.require(lambda _, text: parse(text))
        with suppress(Refused):
            self.read()

    @property
    def value(self) -> _Value | None:
        """The value on disk."""
        return self._value

    @property
    def is_left(self) -> bool:
        """Whether a change has to be undone; True while the file cannot be used."""
        return self._value is not None or not self._is_read

    def read(self) -> None:
        """Read the value of an earlier agent, once; raise Refused while the file cannot be used."""
        if self._is_read:
            return
        self._saved.reread()
        text = self._saved.originals.get(self._key)
        self._value = self._parse(text) if text is not None else None
        self._is_read = True

    def save(self, value: _Value | None) -> None:
        """Save another value, None to delete it; raise Refused if that cannot be written."""
        if value == self._value:
            return
        if value is None:
            self._saved.forget([self._key])
        else:
            self._saved.remember({self._key: self._to_text(value)})
        self._value = value
