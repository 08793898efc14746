"""Bodies as large as a review may be, each made of one thing: what takes most memory for each byte on the wire."""

from __future__ import annotations

import json
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from webhook.review.bodies import BODY_LIMIT
from webhook.rules.part_reader import MOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
    """Yield a name and a review for each case: an object that is created, and two that differ in all that they have.

    Then pods with more than is read, as much as a body has room for.
    """
    for kind, place, form in CASES:
        yield f"{kind[1]} {place} {form[:20]} created", review(kind, filled(kind, place, form, 1))
        old, new = filled(kind, place, form, 2), filled(kind, place, form, 2, "z")
        yield f"{kind[1]} {place} {form[:20]} updated", review(kind, new, old)
    for kind, place, form in CASES[:7]:
        yield (
            f"{kind[1]} {place} {form[:20]} crowded",
            review(kind, filled(kind, place, form, 1, most=BODY_LIMIT)),
        )


def filled(
    kind: tuple[str, str], place: str, form: str, share: int, mark: str = "", most: int | None = None
) -> str:
    """Return an object that fills its share of a body, or as much of it as is read."""
    pieces: list[str] = []
    room = ROOM // share if most or place == "unknown" else min(ROOM // share, MOST.letters - 2000)
    for number in islice(count(), most or _most_read(place, form)):
        piece = form.format(f"{mark}{number:x}")
        room -= len(piece.encode()) + 1
        if room < 0:
            break
        pieces.append(piece)
    whole = (PODS if kind in {POD, DEPLOYMENT} else MACHINES)[place].format(",".join(pieces))
    return f'{{"spec":{{"template":{whole}}}}}' if kind in {DEPLOYMENT, VM} else whole


def _most_read(place: str, form: str) -> int:
    """Return the most pieces of an object that are read; no limit if there is none."""
    if place == "unknown" and form != TEXT:
        return BODY_LIMIT
    objects, commas = form.count("{{"), 1 + form.count(",")
    return min(MOST.commas // commas, MOST.values // objects if objects else MOST.commas) - 20


def review(kind: tuple[str, str], new: str, old: str = "null") -> bytes:
    """Return the body of a review."""
    operation = "CREATE" if old == "null" else "UPDATE"
    said = f'"group":"{kind[0]}","version":"v1","kind":"{kind[1]}"'
    asked = f'"uid":"u","kind":{{{said}}},"operation":"{operation}","object":{new},"oldObject":{old}'
    return f'{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{{asked}}}}}'.encode()


def unlike_pods(each: int) -> Iterator[tuple[str, bytes]]:
    """Yield reviews of pods of which no two are alike, `each` of every kind: small ones whose answers are large."""
    for kind, form in UNLIKE.items():
        for number in range(each):
            yield kind, review(POD, json.dumps(form(f"{number:x}"), ensure_ascii=False))


def _pod(annotations: dict[str, str], names: Iterable[str], **limits: str) -> dict[str, Any]:
    containers = [
        {"name": name, "resources": {"limits": limits}} if limits else {"name": name} for name in names
    ]
    return {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}


def _names(mark: str, count: int, *, length: int = 0) -> list[str]:
    return [f"{mark}x{at}".ljust(length, EMOJI) for at in range(count)]


UNLIKE: dict[str, Callable[[str], dict[str, Any]]] = {
    "containers": lambda mark: _pod({"cmk.intel.com/mutate": "true"}, _names(mark, 800)),
    "claims": lambda mark: _pod({}, _names(mark, 20), **{"cmk.intel.com/exclusive-cores": "1"}),
    "isolated": lambda mark: _pod(
        {"cpu-manager.corepin.io/pod": "exclusive", "smt-policy.corepin.io/pod": "isolate"},
        _names(mark, 60), cpu="1", memory="1Gi",
    ),
    "ghosts": lambda mark: _pod(
        {f"numa-policy.corepin.io/container.{name}": "x" for name in _names(mark, 60)},
        _names("c", 10, length=60),
    ),
    "scopes": lambda mark: _pod(
        {f"numa-policy.corepin.io/{name}": "x" for name in _names(mark, 60, length=60)}, ["a"]
    ),
    "counts": lambda mark: _pod(
        {}, _names(mark, 60, length=60), **{"cmk.intel.com/exclusive-cores": EMOJI * 40}
    ),
}  # fmt: skip
