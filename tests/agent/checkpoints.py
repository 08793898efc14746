"""The bytes of checkpoints."""

from __future__ import annotations

import io

from agent.reconcile.checkpoint import Saved, write


def written(saved: Saved) -> bytes:
    """Return the content of a checkpoint's file."""
    file = io.BytesIO()
    write(saved, file)
    return file.getvalue()
