"""Runtime handlers and classes that start virtual machines (Kata), so that containers run inside a guest."""

from __future__ import annotations

from typing import Final

_WORD: Final = "kata"  # in names of handlers, classes and shims: "kata-qemu", "io.containerd.kata.v2"


def is_vm_handler(name: str) -> bool:
    """Return whether a runtime handler, runtime class or shim of that name starts virtual machines."""
    return _WORD in name
