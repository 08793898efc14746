"""Which runtime handlers and runtime classes start virtual machines (Kata): there a container's cpuset is in the guest."""

from __future__ import annotations

from typing import Final

_WORDS: Final = ("kata",)  # in the name of a handler, class or shim: "kata-qemu", "io.containerd.kata.v2"


def is_vm_handler(name: str) -> bool:
    """Say whether a runtime handler, a class of that name, or the name of its shim, starts virtual machines."""
    return any(word in name for word in _WORDS)
