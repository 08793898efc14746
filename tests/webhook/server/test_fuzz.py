"""Fuzzing the webhook: any body gets an answer, without a traceback, a lost connection or a leak.

COREPIN_FUZZ_BODIES sets how many bodies are sent; the same number makes the same bodies.
"""

from __future__ import annotations

import copy
import http.client
import json
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.webhook.clients import CA, tls_flags
from tests.webhook.mounted import Mounted, pair
from tests.webhook.reviews import review
from tests.webhook.serving import PATIENCE_SECONDS, Server, serving, trusting
from webhook.review.bodies import BODY_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BODIES = int(os.environ.get("COREPIN_FUZZ_BODIES", "5000"))
WARM_UP = 1000
LONG_BODIES_EVERY = 500
GROWTH_MEGABYTES = 8.0
EXPECTED = {200, 400, 413, 415}

CORES = {"cmk.intel.com/exclusive-cores": "2"}
POD: dict[str, Any] = {
    "metadata": {
        "generateName": "web-",
        "labels": {"kubevirt.io": "virt-launcher"},
        "annotations": {
            "cmk.intel.com/mutate": "true",
            "cpu-manager.corepin.io/pod": "exclusive",
            "cpu-manager.corepin.io/container.b": "share",
            "smt-policy.corepin.io/pod": "isolate",
            "numa-policy.corepin.io/pod": "single",
            "numa-memory.corepin.io/pod": "bind",
        },
    },
    "spec": {
        "nodeSelector": {"cpumanager": "true"},
        "serviceAccountName": "default",
        "tolerations": [{"key": "cmk", "operator": "Exists"}],
        "volumes": [{"name": "v", "hostPath": {"path": "/opt"}}],
        "initContainers": [{"name": "i", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "a",
                "resources": {"requests": CORES, "limits": CORES | {"cpu": "1500m"}},
                "env": [{"name": "CMK_NUM_CORES", "value": "3"}],
                "volumeMounts": [{"name": "v", "mountPath": "/opt/bin"}],
            },
            {"name": "b", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}},
        ],
    },
}
VMI_SPEC: dict[str, Any] = {
    "domain": {
        "cpu": {
            "cores": 4,
            "sockets": 1,
            "threads": 2,
            "dedicatedCpuPlacement": True,
            "isolateEmulatorThread": True,
            "numa": {"guestMappingPassthrough": {}},
            "realtime": {"mask": "0-3,^1"},
        },
        "ioThreadsPolicy": "supplementalPool",
        "ioThreads": {"supplementalPoolThreadCount": 2},
        "memory": {"guest": "2Gi", "hugepages": {"pageSize": "2Mi"}},
        "resources": {"requests": {"memory": "2Gi", "cpu": 4}, "limits": {"cpu": "4"}},
    }
}
VMI = {"metadata": {"name": "vm", "annotations": {"hooks.kubevirt.io/hookSidecars": "[]"}}, "spec": VMI_SPEC}
VM = {"metadata": {"name": "vm"}, "spec": {"template": {"spec": VMI_SPEC}}}
DEPLOYMENT = {"metadata": {"name": "d"}, "spec": {"template": POD}}
OBJECTS = (
    ("", "v1", "Pod", POD),
    ("apps", "v1", "Deployment", DEPLOYMENT),
    ("kubevirt.io", "v1", "VirtualMachineInstance", VMI),
    ("kubevirt.io", "v1", "VirtualMachine", VM),
)
ODDITIES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 1e308, 2**63, 2**70, "", "x", "-1", "1e9", "10m", "99999999999999999999Gi", "0-3,8",
    "true", "none", "exclusive", "\u0000", "\ud800", "é" * 300, [], {}, [None], [[]], {"": None}, [{}], [1, "a"],
)  # fmt: skip


def documents() -> list[dict[str, Any]]:
    """Return sound reviews of every kind that is judged, created, updated and deleted."""
    found = []
    for group, version, kind, document in OBJECTS:
        for operation in ("CREATE", "UPDATE", "DELETE"):
            body = json.loads(review())
            body["request"] |= {
                "kind": {"group": group, "version": version, "kind": kind},
                "operation": operation,
                "object": None if operation == "DELETE" else document,
                "oldObject": None if operation == "CREATE" else document,
            }
            found.append(body)
    return found


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container of a document with every key of it."""
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, member in members:
        yield value, key
        yield from places(member)


def odd_value(chance: random.Random, body: dict[str, Any]) -> bytes:
    """Replace or remove a few members, mostly of the objects: a spoiled envelope goes no further."""
    body = copy.deepcopy(body)
    inner = [body["request"][name] for name in ("object", "oldObject") if body["request"][name]]
    for _ in range(chance.randint(1, 3)):
        where = chance.choice(inner) if inner and chance.random() < 0.9 else body
        container, key = chance.choice(list(places(where)) or [(body, "request")])
        if isinstance(container, dict) and chance.random() < 0.2:
            del container[key]
        else:
            alike = [value for value in ODDITIES if type(value) is type(container[key])]
            pool = alike if alike and chance.random() < 0.8 else ODDITIES  # reviews of other types end early
            container[key] = copy.deepcopy(chance.choice(pool))
    return json.dumps(body).encode()


def torn_bytes(chance: random.Random, body: dict[str, Any]) -> bytes:
    """Overwrite, cut out or double a few pieces."""
    raw = bytearray(json.dumps(body).encode())
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(raw))
        piece = raw[start : start + chance.randint(1, 20)]
        raw[start : start + chance.choice((0, 1, 20))] = chance.choice(
            (b"", piece, chance.randbytes(3), b'"', b"{")
        )
    return bytes(raw)


def cut_short(chance: random.Random, body: dict[str, Any]) -> bytes:
    """Keep the beginning only."""
    raw = json.dumps(body).encode()
    return raw[: chance.randrange(len(raw))]


def noise(chance: random.Random, _body: dict[str, Any]) -> bytes:
    """Return no JSON at all, or JSON that is far too deep."""
    if chance.random() < 0.1:
        return chance.choice((b"[", b'{"a":')) * chance.randint(1, 50_000)
    return chance.randbytes(chance.randint(0, 2000))


def deep_object(chance: random.Random, body: dict[str, Any]) -> bytes:
    """Put something far too deep where the object is."""
    depth = chance.randint(100, 20_000)
    deep = b"[" * depth + b"]" * depth
    raw = json.dumps(body | {"request": body["request"] | {"object": "HERE"}}).encode()
    return raw.replace(b'"HERE"', b'{"spec":{"x":%s},"metadata":{"labels":%s}}' % (deep, deep))


SPOILERS: tuple[Callable[[random.Random, dict[str, Any]], bytes], ...] = (
    odd_value, odd_value, odd_value, torn_bytes, torn_bytes, cut_short, noise, deep_object,
)  # fmt: skip


def posts(count: int) -> Iterator[tuple[str, bytes, str]]:
    """Yield path, body and content type of spoiled requests, the same ones each time."""
    chance = random.Random(20261120)  # noqa: S311 - reproducible on purpose
    sound = documents()
    for number in range(count):
        spoil = chance.choice(SPOILERS)
        body = spoil(chance, chance.choice(sound))
        if number % LONG_BODIES_EVERY == 0:
            body = body.ljust(BODY_LIMIT + 1)
        content_type = (
            "application/json" if chance.random() < 0.98 else chance.choice(("text/plain", "", "json"))
        )
        yield chance.choice(("/mutate", "/validate")), body, content_type


def send_all(server: Server, count: int) -> tuple[Counter[int], float]:
    """Send everything over one connection that is never replaced; return the statuses and the growth of memory."""
    statuses: Counter[int] = Counter()
    begin = 0.0
    connection = http.client.HTTPSConnection(
        server.host, server.port, timeout=PATIENCE_SECONDS, context=trusting(CA)
    )
    connection.connect()
    connection.auto_open = 0
    for number, (path, body, content_type) in enumerate(posts(count)):
        connection.request("POST", path, body, {"Content-Type": content_type})
        response = connection.getresponse()
        answer = response.read()
        statuses[response.status] += 1
        assert response.status in EXPECTED, (path, response.status, body[:3000])
        assert response.status == 200 or len(answer) < 300, answer
        if number == min(WARM_UP, count // 2):
            begin = server.resident_megabytes()
    connection.close()
    return statuses, server.resident_megabytes() - begin


def test_no_body_hurts(tmp_path: Path) -> None:
    """Every body gets one of four statuses, over one connection, without a traceback, at constant memory."""
    secret = Mounted(tmp_path / "tls", pair(CA))
    with serving(*tls_flags(secret)) as server:
        statuses, growth = send_all(server, BODIES)
        code = server.terminate()

    assert code == 0
    assert statuses.keys() == EXPECTED
    assert sum(statuses.values()) == len(server.reviews.lines) == BODIES
    assert growth < GROWTH_MEGABYTES
    assert (server.log.plain, server.reviews.plain) == ([], [])
    assert not any("traceback" in line for line in server.log.lines)
    print(f"{dict(statuses)}, resident memory {growth:+.1f} MB")  # noqa: T201 - shown with pytest -s
