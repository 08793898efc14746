"""Decoding of untrusted JSON: annotations, socket messages, files of the node. Pure."""

from __future__ import annotations

import json
from typing import Any

from pinning.errors import BadJSON


def parse_json(text: str | bytes) -> Any:
    """Return the decoded value; raise BadJSON if the text is not JSON or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise BadJSON("not JSON (nested too deeply)") from error
    except ValueError as error:
        raise BadJSON(f"not JSON ({error})") from error
