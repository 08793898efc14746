"""No byte of an object bypasses admission: a wrong object is refused and a right one is injected."""

from __future__ import annotations

import copy
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.pods import CPU_MANAGER
from webhook.config.mutations import BUILT_IN
from webhook.config.reload import Revision
from webhook.config.settings import Settings
from webhook.metrics import Metrics, ReviewMeter
from webhook.review.app import Reply, ReviewEndpoint
from webhook.review.handler import Decider
from webhook.review.log import ReviewLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from webhook.config.mutations import Mutations

Path = tuple[str | int, ...]

HOLE: Final = "the place of a trick"
NONSENSE: Final = {CPU_MANAGER: "nonsense"}
POD: Final[dict[str, Any]] = {
    "metadata": {
        "name": "p",
        "labels": {"app": "x"},
        "annotations": {"own": "text", **NONSENSE},
        "managedFields": [{"manager": "m", "fieldsV1": {"f:a": {"f:b": "c"}}}],
    },
    "spec": {
        "containers": [
            {
                "name": "a",
                "image": "i",
                "args": ["x"],
                "env": [{"name": "E", "value": "v"}],
                "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": 2}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
        "volumes": [{"name": "v", "hostPath": {"path": "/v"}}],
        "tolerations": [{"key": "k", "tolerationSeconds": 5}],
        "nodeSelector": {"a": "b"},
        "priority": 5,
    },
    "status": {"phase": "Pending", "containerStatuses": [{"name": "a", "restartCount": 0}]},
}
GUEST: Final[dict[str, Any]] = {
    "metadata": {"annotations": dict(NONSENSE)},
    "spec": {
        "domain": {
            "cpu": {
                "cores": 2,
                "dedicatedCpuPlacement": True,
                "features": [{"name": "f", "policy": "require"}],
            },
            "memory": {"guest": "1Gi"},
            "devices": {"disks": [{"name": "d", "bootOrder": 1}]},
        },
        "volumes": [{"name": "d", "cloudInitNoCloud": {"userData": "text"}}],
    },
}
OBJECTS: Final = {
    "Pod": (("", "Pod"), POD, ("metadata",)),
    "Deployment": (("apps", "Deployment"), {"spec": {"template": POD}}, ("spec", "template", "metadata")),
    "CronJob": (
        ("batch", "CronJob"),
        {"spec": {"jobTemplate": {"spec": {"template": POD}}}},
        ("spec", "jobTemplate", "spec", "template", "metadata"),
    ),
    "VirtualMachine": (
        ("kubevirt.io", "VirtualMachine"),
        {"metadata": {"name": "vm"}, "spec": {"running": True, "template": GUEST}},
        ("spec", "template", "metadata"),
    ),
    "VirtualMachineInstance": (("kubevirt.io", "VirtualMachineInstance"), GUEST, ("metadata",)),
}  # fmt: skip
OPERATIONS: Final = {
    "created": ("CREATE", None),
    "updated": ("UPDATE", None),
    "resized": ("UPDATE", "resize"),
}
NEST: Final = b"[" * 5000 + b"]" * 5000
TEXTS: Final = {
    "no UTF-8": b'"\xff"',
    "half a character": rb'"\ud800"',
    "a forged end": json.dumps('"},"status":{"managedFields":[]},"metadata":{}}').encode(),
    "an escaped backslash": rb'"\\"',
    "commas": b'"%b"' % (b"," * 270_000),
    "braces": b'"%b"' % (b"{" * 100_001),
    "escapes": b'"%b"' % (rb"\u003c" * 60_000),
    "nested": b'{"a":%b}' % NEST,
    "a number": b"5",
}
NUMBERS: Final = {
    "endless": b"1e999",
    "5000 digits": b"1" * 5000,
    "below zero": b"-0",
    "a text": b'"\xff"',
    "nested": NEST,
}
KEYS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "no UTF-8": lambda key: b'"%b\xff"' % key,
    "half a character": lambda key: rb'"%b\ud800"' % key,
    "escaped": lambda key: b'"' + b"".join(rb"\u%04x" % letter for letter in key) + b'"',
    "twice": lambda key: b'"%b":null,"%b"' % (key, key),
}
SAME_KEY: Final = {"escaped", "twice"}


class Webhook:
    """Both endpoints, without HTTP."""

    def __init__(self, mutations: Mutations = BUILT_IN, settings: Settings | None = None) -> None:
        decider = Decider(settings or Settings(), mutations)
        metrics, log = Metrics(), ReviewLog(lambda _: None)
        meters = {name: ReviewMeter(metrics, name) for name in ("mutate", "validate")}
        make = partial(ReviewEndpoint, deciders=lambda: Revision(1, decider), log=log)
        self.mutate = make("mutate", lambda rules, asked: rules.mutate(asked), meter=meters["mutate"])
        self.validate = make("validate", lambda rules, asked: rules.validate(asked), meter=meters["validate"])


def answer(reply: Reply) -> dict[str, Any]:
    """Return the response of an answer, which a call never fails to get."""
    assert reply.status == 200, reply.body
    response: dict[str, Any] = json.loads(reply.body)["response"]
    assert response["uid"] == "u"
    return response


def review(kind: tuple[str, str], operation: str, sub: str | None, new: bytes, old: bytes) -> bytes:
    """Return a review in the order in which the API server writes it."""
    asked = {"uid": "u", "kind": {"group": kind[0], "version": "v1", "kind": kind[1]}, "operation": operation}
    asked |= {"subResource": sub} if sub else {}
    head = json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked})[:-2]
    return head.encode() + b',"object":%b,"oldObject":%b}}' % (new, old)


def places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the value of every member of a document."""
    if isinstance(value, dict | list):
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key), member
            yield from places(member, (*path, key))


def with_value(document: Any, path: Path, raw: bytes) -> bytes:
    """Return a document with other bytes for a value."""
    changed = copy.deepcopy(document)
    where = changed
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = HOLE
    return json.dumps(changed).encode().replace(json.dumps(HOLE).encode(), raw)


def with_key(document: Any, path: Path, raw: bytes) -> bytes:
    """Return a document with other bytes for a key."""
    changed = copy.deepcopy(document)
    where = changed
    for key in path[:-1]:
        where = where[key]
    renamed = {HOLE if key == path[-1] else key: value for key, value in where.items()}
    where.clear()
    where.update(renamed)
    return json.dumps(changed).encode().replace(json.dumps(HOLE).encode(), raw)


def tricked(document: Any, metadata: Path) -> Iterator[tuple[Path, str, bytes]]:
    """Yield a document with each trick in each place, but for keys without which it is no wrong object any more."""
    flaw = (*metadata, "annotations", CPU_MANAGER)
    for path, value in places(document):
        tricks = TEXTS if isinstance(value, str) else NUMBERS if type(value) is int else {}
        for name, raw in tricks.items():
            if not (path == flaw and name == "a number"):
                yield path, name, with_value(document, path, raw)
        for name, key in KEYS.items() if isinstance(path[-1], str) else ():
            if name in SAME_KEY or path != flaw[: len(path)]:
                yield path, name, with_key(document, path, key(str(path[-1]).encode()))


def without_flaw(document: Any, metadata: Path) -> Any:
    """Return the object without its annotation."""
    changed = copy.deepcopy(document)
    where = changed
    for key in metadata:
        where = where[key]
    del where["annotations"][CPU_MANAGER]
    return changed


@pytest.mark.parametrize(
    ("name", "did"),
    [(name, did) for name in OBJECTS for did in OPERATIONS if name == "Pod" or did != "resized"],
)
def test_a_wrong_object_is_not_admitted_by_a_trick(name: str, did: str) -> None:
    """Each trick in each value and key of a wrong object is a refusal, or a warning for templates; never 4xx."""
    kind, document, metadata = OBJECTS[name]
    operation, sub = OPERATIONS[did]
    before = json.dumps(without_flaw(document, metadata)).encode() if operation == "UPDATE" else b"null"
    webhook, judged = Webhook(), 0
    for path, trick, new in tricked(document, metadata):
        response = answer(webhook.validate.review(review(kind, operation, sub, new, before)))
        if kind[0] in {"apps", "batch"}:
            assert (response["allowed"], len(response["warnings"]) > 0) == (True, True), (path, trick)
        else:
            assert not response["allowed"], (path, trick)
            assert "corepin" in response["status"]["message"]
        assert answer(webhook.mutate.review(review(kind, operation, sub, new, before)))["allowed"]
        judged += 1
    assert judged > 100


@pytest.mark.parametrize("name", OBJECTS)
def test_a_trick_in_the_old_object_admits_nothing(name: str) -> None:
    """A new object that is wrong is refused whatever the old object contains."""
    kind, document, metadata = OBJECTS[name]
    before = without_flaw(document, metadata)
    webhook = Webhook()
    for path, trick, old in tricked(before, metadata):
        new = json.dumps(document).encode()
        response = answer(webhook.validate.review(review(kind, "UPDATE", None, new, old)))
        assert response.get("warnings") or not response["allowed"], (path, trick)
