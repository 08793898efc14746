"""Bodies as large as a review may be, each made of one thing: what takes most memory for each byte on the wire."""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING

from webhook.app import BODY_LIMIT, MOST_COMMAS, MOST_VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator

POD = ("", "Pod")
DEPLOYMENT = ("apps", "Deployment")
VM = ("kubevirt.io", "VirtualMachine")
VMI = ("kubevirt.io", "VirtualMachineInstance")
ROOM = BODY_LIMIT - 2000
EMOJI = "\U0001f600"  # a text takes four bytes for each of its characters when one of them is like this

PODS = {
    "annotations": '{{"metadata":{{"annotations":{{{0}}}}},"spec":{{"containers":[{{"name":"a"}}]}}}}',
    "requests": '{{"spec":{{"containers":[{{"name":"a","resources":{{"requests":{{{0}}}}}}}]}}}}',
    "selector": '{{"spec":{{"nodeSelector":{{{0}}},"containers":[{{"name":"a"}}]}}}}',
    "env": '{{"spec":{{"containers":[{{"name":"a","env":[{0}]}}]}}}}',
    "containers": '{{"spec":{{"containers":[{0}]}}}}',
    "unknown": '{{"spec":{{"containers":[{{"name":"a"}}],"x":[{0}]}}}}',
}
MACHINES = {
    "annotations": '{{"metadata":{{"annotations":{{{0}}}}},"spec":{{}}}}',
    "members": '{{"spec":{{{0}}}}}',
    "features": '{{"spec":{{"domain":{{"cpu":{{"features":[{0}]}}}}}}}}',
    "unknown": '{{"spec":{{"x":[{0}]}}}}',
}
MEMBER, TEXT, ENTRY, GHOST, WIDE = (
    '"{0}":"{0}"',
    '"{0}"',
    '{{"name":"{0}","policy":"{0}","value":"{0}"}}',
    '"smt-policy.corepin.io/{0}":"{0}"',
    f'"cpu-manager.corepin.io/{EMOJI}{{0}}":"{"x" * 100_000}{EMOJI}"',
)
CASES = (
    (POD, "annotations", MEMBER), (POD, "annotations", GHOST), (POD, "annotations", WIDE), (POD, "requests", MEMBER),
    (POD, "selector", MEMBER), (POD, "env", ENTRY), (POD, "containers", ENTRY), (POD, "unknown", TEXT),
    (DEPLOYMENT, "annotations", GHOST), (DEPLOYMENT, "env", ENTRY), (DEPLOYMENT, "unknown", ENTRY),
    (VM, "annotations", GHOST), (VM, "features", ENTRY), (VM, "unknown", TEXT),
    (VMI, "annotations", GHOST), (VMI, "members", MEMBER), (VMI, "features", ENTRY), (VMI, "unknown", TEXT),
)  # fmt: skip


def bodies() -> Iterator[tuple[str, bytes]]:
    """Yield a name and a review for each case: an object that is created, and two that differ in all that they have."""
    for kind, place, form in CASES:
        yield f"{kind[1]} {place} {form[:20]} created", review(kind, made(kind, place, form, 1))
        old, new = made(kind, place, form, 2), made(kind, place, form, 2, "z")
        yield f"{kind[1]} {place} {form[:20]} updated", review(kind, new, old)


def made(kind: tuple[str, str], place: str, form: str, share: int, mark: str = "") -> str:
    """Return an object that fills its share of a body."""
    objects = form.count("{{")
    most = MOST_COMMAS // (1 + form.count(","))
    if objects:
        most = min(most, MOST_VALUES // objects)
    pieces: list[str] = []
    room = ROOM // share
    for number in islice(count(), most // share - 20):
        piece = form.format(f"{mark}{number:x}")
        room -= len(piece.encode()) + 1
        if room < 0:
            break
        pieces.append(piece)
    whole = (PODS if kind in {POD, DEPLOYMENT} else MACHINES)[place].format(",".join(pieces))
    return f'{{"spec":{{"template":{whole}}}}}' if kind in {DEPLOYMENT, VM} else whole


def review(kind: tuple[str, str], new: str, old: str = "null") -> bytes:
    """Return the body of a review."""
    operation = "CREATE" if old == "null" else "UPDATE"
    said = f'"group":"{kind[0]}","version":"v1","kind":"{kind[1]}"'
    asked = f'"uid":"u","kind":{{{said}}},"operation":"{operation}","object":{new},"oldObject":{old}'
    return f'{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{{asked}}}}}'.encode()
