"""JSON log lines: a constant event, and facts as fields."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

CLIENT: Final = ("httpx", "httpcore")

_encode = msgspec.json.Encoder(enc_hook=str).encode


class JSONFormatter(logging.Formatter):
    """Formats a record as one JSON line: a constant event, and facts given as `extra={"facts": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line break."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "event": record.getMessage(),
            "logger": record.name,
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _encode(line).decode()


def configure(level: int = logging.INFO, noisy: Iterable[str] = CLIENT) -> None:
    """Send all logging of the process to standard error as JSON lines; of `noisy` libraries errors only."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("asyncio", *noisy):
        logging.getLogger(name).setLevel(logging.ERROR)
