"""The member names that the shim reads: `shim/vcpus.c` has no types, so they are compared with those of `published/`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from published.pod_status import Container, GuestPlace, Machine, PodStatus

STRUCTS = (PodStatus, Container, Machine, GuestPlace)


def test_the_shim_reads_members_that_are_published() -> None:
    """Each name that its C code looks up is one of the status annotation."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(Path("shim").glob("*.c")))
    read = set(re.findall(r'json_member\((?:[^"()]|\([^()]*\))*, "(\w+)"\)', text))
    published = {field.encode_name for struct in STRUCTS for field in msgspec.structs.fields(struct)}

    assert {"vm", "guest", "vcpus", "containers", "policy", "cpus", "reason", "socket", "thread"} <= read
    assert read <= published
