"""Read JSON that others wrote: into annotations, onto a socket, into a file of the node. Pure."""

from __future__ import annotations

import json
from typing import Any

from pinning.errors import BadJSON


def parse_json(text: str | bytes) -> Any:
    """Return what a text says; raise BadJSON for everything that is no JSON, or thousands of brackets in brackets."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise BadJSON("not JSON (nested too deeply)") from error
    except ValueError as error:
        raise BadJSON(f"not JSON ({error})") from error
