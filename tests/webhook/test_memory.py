"""No review takes much memory, whatever fills its body."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.webhook.hostile_bodies import bodies
from tests.webhook.mounted import Mounted, pair
from tests.webhook.reviews import review
from tests.webhook.serving import serving
from tests.webhook.test_server import CA, client, tls_flags
from webhook.app import BODY_LIMIT

if TYPE_CHECKING:
    from pathlib import Path

MOST_MEGABYTES = 80
MUTATIONS = b"mutations:\n  perPod: {spec: {dnsPolicy: Default}}\n  perContainer: {}\n"


@pytest.mark.parametrize("mutations", [None, MUTATIONS], ids=["built in", "whole pods are read"])
def test_no_body_takes_much_memory(tmp_path: Path, mutations: bytes | None) -> None:
    """Each body up to the limit stays below 80 MB above the idle server, and its answer below 64 kB."""
    flags = [*tls_flags(Mounted(tmp_path / "tls", pair(CA)))]
    if mutations:
        (tmp_path / "mutations.yaml").write_bytes(mutations)
        flags += ["--mutations", tmp_path / "mutations.yaml"]
    with serving(*flags) as server, client(server) as http:
        assert http.post("/validate", content=review()).status_code == 200
        idle = server.resident_megabytes()
        for name, body in bodies():
            assert len(body) <= BODY_LIMIT
            for path in ("/mutate", "/validate"):
                server.forget_peak()
                answer = http.post(path, content=body)
                assert answer.status_code == 200, (name, answer.text)
                assert len(answer.content) < 64_000, name
                taken = server.peak_megabytes() - idle
                print(f"{taken:5.1f} MB {len(body) >> 20} MiB {path} {name}")  # noqa: T201 - shown with pytest -s
                assert taken < MOST_MEGABYTES, (path, name)
