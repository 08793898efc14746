"""JSON log lines with a constant event and facts as fields."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from logs.printable import harmless_json

# Errors only: httpx logs each request, and uvicorn each invalid one, by which any client could flood the log.
NOISY: Final = ("asyncio", "httpx", "httpcore", "uvicorn")

_encode = msgspec.json.Encoder(enc_hook=str).encode


class JSONFormatter(logging.Formatter):
    """Formats a record as one JSON line: a constant event, and facts from `extra={"facts": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without a line break; characters that control or deceive a terminal are escaped."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "event": record.getMessage(),
            "logger": record.name,
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return harmless_json(_json(line))


def _json(line: dict[str, Any]) -> str:
    try:
        return _encode(line).decode()
    except UnicodeEncodeError:  # a lone surrogate: os.fsdecode returns one for each byte that is not UTF-8
        return json.dumps(msgspec.to_builtins(line, enc_hook=str, str_keys=True), ensure_ascii=False)


def configure() -> None:
    """Send all logging of the process to standard error as JSON lines; NOISY libraries from level error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
