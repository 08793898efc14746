"""The kubelet's CPU settings from its configz, and the defaults without it."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from agent import main
from agent.config import AgentConfig, ApiFlags, parse_configz
from agent.errors import Refused
from agent.kubelet.configz import TRIES, KubeletConfig, adopt, ask_kubelet, read_configz
from agent.reconcile.reconciler import Settings
from apiserver.access import Access
from pinning.contract import KubeletPolicy
from pinning.errors import BadContract
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.node_config import NodeConfig
from tests.agent.fakes import FakeNode
from tests.pinning.machines import FLAT
from tests.tables import table

NONE, STATIC, UNKNOWN = KubeletPolicy.NONE, KubeletPolicy.STATIC, KubeletPolicy.UNKNOWN


def document(**config: Any) -> bytes:
    """Return a configz document."""
    return json.dumps({"kubeletconfig": {"kind": "KubeletConfiguration", **config}}).encode()


@table(
    "config, policy, reserved",
    {
        "nothing reserved": ({"cpuManagerPolicy": "none"}, NONE, ""),
        "named": ({"cpuManagerPolicy": "static", "reservedSystemCPUs": "1,5"}, STATIC, "1,5"),
        "no policy": ({}, UNKNOWN, ""),
        "another policy": ({"cpuManagerPolicy": "other"}, UNKNOWN, ""),
        "part of a CPU is a core": ({"kubeReserved": {"cpu": "100m"}}, UNKNOWN, "0,4"),
        "both amounts make one core": (
            {"kubeReserved": {"cpu": "1500m"}, "systemReserved": {"cpu": "500m"}},
            UNKNOWN,
            "0,4",
        ),
        "a little more is another core": (
            {"kubeReserved": {"cpu": "2"}, "systemReserved": {"cpu": "1m"}},
            UNKNOWN,
            "0-1,4-5",
        ),
        "no CPU": ({"kubeReserved": {"memory": "1Gi"}}, UNKNOWN, ""),
        "null": ({"kubeReserved": None, "systemReserved": {}}, UNKNOWN, ""),
        "names beat amounts": ({"reservedSystemCPUs": "3", "kubeReserved": {"cpu": "4"}}, UNKNOWN, "3"),
        "more than there is": ({"kubeReserved": {"cpu": "99"}}, UNKNOWN, "0-7"),
    },
)
def test_configz_is_read(config: dict[str, Any], policy: KubeletPolicy, reserved: str) -> None:
    """Reserved CPUs are the named ones, otherwise whole cores for the sum of the amounts."""
    expected = CPUSet.parse(reserved) if reserved else EMPTY
    assert read_configz(document(**config), FLAT) == KubeletConfig(policy, expected)


def test_reserved_amounts_use_online_cpus() -> None:
    """An offline core is not reserved, and a core with one online CPU counts as one CPU."""
    machine = FLAT.with_online(CPUSet.parse("1-3,6-7"))

    assert read_configz(document(kubeReserved={"cpu": "2"}), machine).reserved == CPUSet.parse("1-2,5-6")


@table(
    "text",
    {
        "no JSON": b"{",
        "no object": b"[]",
        "deep": b'{"kubeletconfig":' * 10_000,
        "another document": b"{}",
        "no CPU list": document(reservedSystemCPUs="5-3"),
        "no quantity": document(kubeReserved={"cpu": "much"}),
        "no amounts": document(kubeReserved=7),
    },
)
def test_invalid_configz_is_refused(text: bytes) -> None:
    """A malformed document raises Refused."""
    with pytest.raises(Refused, match="configz cannot be understood"):
        read_configz(text, FLAT)


@table(
    "chosen, kubelet_reserves, reserved",
    {
        "the kubelet's": (None, "1,5", "1,5"),
        "the operator's word first": ("3", "1,5", "3"),
        "the kubelet keeps none": (None, "", None),
        "nothing would be left": (None, "0-7", None),
        "a CPU that is not there": (None, "64", None),
    },
)
def test_reserved_cpus_are_adopted(chosen: str | None, kubelet_reserves: str, reserved: str | None) -> None:
    """The kubelet's reserved CPUs are used if the operator named none and some CPUs remain."""
    config = NodeConfig(reserved=CPUSet.parse(chosen) if chosen else None)
    kubelet = KubeletConfig(NONE, CPUSet.parse(kubelet_reserves) if kubelet_reserves else EMPTY)

    found = adopt(config, kubelet, FLAT, FLAT.online).reserved
    assert found == (CPUSet.parse(reserved) if reserved else None)


@pytest.mark.parametrize(
    ("word", "is_strict"), [("true", True), ("1", True), ("false", False), ("yes", False), (None, False)]
)
def test_strict_cpu_reservation_is_read(word: str | None, is_strict: bool) -> None:
    """The option is a text that is parsed as Go parses booleans."""
    options = {"strict-cpu-reservation": word} if word else None
    assert read_configz(document(cpuManagerPolicyOptions=options), FLAT).is_strict is is_strict


def test_the_topology_managers_policy_is_read() -> None:
    """The policy is read as the kubelet writes it, truncated; it is empty if the kubelet names none."""
    configz = document(topologyManagerPolicy="best-effort")
    assert read_configz(configz, FLAT).topology_manager == "best-effort"
    assert read_configz(document(), FLAT).topology_manager == ""
    assert len(read_configz(document(topologyManagerPolicy="x" * 9999), FLAT).topology_manager) < 200


@table(
    "chosen, kubelet_is, strict",
    {
        "the kubelet's": (None, True, True),
        "the operator's word first": (False, True, False),
        "strict beside a kubelet that is not": (True, False, True),
        "neither": (None, False, None),
    },
)
def test_strict_reservation_is_adopted(chosen: bool | None, kubelet_is: bool, strict: bool | None) -> None:
    """The kubelet's option is the default, also with CPUs that the operator reserved."""
    kubelet = KubeletConfig(STATIC, CPUSet.parse("1,5"), is_strict=kubelet_is)
    for reserved in (None, CPUSet.parse("0,4")):
        config = NodeConfig(reserved=reserved, strict_reserved=chosen)
        found = adopt(config, kubelet, FLAT, FLAT.online)
        assert (found.reserved, found.strict_reserved) == (reserved or CPUSet.parse("1,5"), strict)


def ask(*answers: int | bytes | Exception, **access: Any) -> tuple[KubeletConfig | None, list[httpx.Request]]:
    """Ask a kubelet with these answers; return the result and the requests."""
    script, asked = iter(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        answer = next(script)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(200, content=answer) if isinstance(answer, bytes) else httpx.Response(answer)

    async def sleep(_: float) -> None:
        await asyncio.sleep(0)

    server = Access("https://node-1:10250", **access)
    return asyncio.run(ask_kubelet(server, FLAT, httpx.MockTransport(answer), sleep)), asked


def test_configz_is_requested_with_the_agents_token(tmp_path: Path) -> None:
    """One request with the token goes to the node's own kubelet."""
    token = tmp_path / "token"
    token.write_text("secret")
    found, asked = ask(document(cpuManagerPolicy="none", reservedSystemCPUs="0,4"), token_file=token)

    assert found == KubeletConfig(NONE, CPUSet.parse("0,4"))
    assert [str(request.url) for request in asked] == ["https://node-1:10250/configz"]
    assert asked[0].headers["authorization"] == "Bearer secret"


def test_request_is_retried_while_the_kubelet_starts() -> None:
    """A connection error or 503 is retried, because the kubelet may start after the agent."""
    found, asked = ask(httpx.ConnectError("refused"), 503, document(cpuManagerPolicy="static"))

    assert found == KubeletConfig(STATIC, EMPTY)
    assert len(asked) == TRIES


@table(
    "answers, requests",
    {
        "out of reach": ([httpx.ConnectError("certificate verify failed")] * TRIES, TRIES),
        "fails": ([500] * TRIES, TRIES),
        "no right": ([403], 1),
        "no such page": ([404], 1),
        "not a kubelet": ([b"<html>"], 1),
    },
)
def test_failed_request_is_logged_with_the_remedy(
    answers: list[int | bytes | Exception], requests: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The default is kept and the log has reason and remedy; a definite refusal is not retried."""
    with caplog.at_level(logging.WARNING):
        found, asked = ask(*answers)

    assert (found, len(asked)) == (None, requests)
    [record] = caplog.records
    assert "nodes/configz" in record.__dict__["facts"]["remedy"]
    assert record.__dict__["facts"]["reason"]


def test_missing_ca_file_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A missing CA file is logged and does not prevent the start."""
    found, asked = ask(ca_file=tmp_path / "none.crt")

    assert (found, asked) == (None, [])
    assert "none.crt" in caplog.records[0].__dict__["facts"]["reason"]


@table(
    "url, server",
    {
        "not given": (None, None),
        "off": ("off", None),
        "address": ("https://10.0.0.1:10250/configz", "https://10.0.0.1:10250"),
        "IPv6": ("https://[fd00::1]:10250/configz", "https://[fd00::1]:10250"),
        "IPv6 as pods are told it": ("https://fd00::1:10250/configz", "https://[fd00::1]:10250"),
    },
)
def test_address_is_read(url: str | None, server: str | None) -> None:
    """The kubelet's address is returned, or None."""
    assert parse_configz(url) == server


@table(
    "url",
    {
        "token in the clear": "http://node:10255/configz",
        "nodes/proxy": "https://api/api/v1/nodes/n/proxy/configz",
        "no path": "https://node:10250",
        "no URL": "node:10250",
        "no host": "https:///configz",
        "no such port": "https://node:70000/configz",
        "half of an IPv6 address": "https://fd00::1]:10250/configz",
    },
)
def test_other_addresses_are_refused(url: str) -> None:
    """The error names the flag and an example."""
    with pytest.raises(BadContract, match=r"--kubelet-configz: .*https://NODE:10250/configz"):
        parse_configz(url)


@table(
    "file, configz, policy",
    {
        "no file": (None, STATIC, STATIC),
        "the file is newer": ("none", STATIC, NONE),
        "the file is newer, static": ("static", NONE, STATIC),
        "nobody says": (None, UNKNOWN, UNKNOWN),
    },
)
def test_policy_of_configz_counts_without_a_state_file(
    node: FakeNode, tmp_path: Path, file: str | None, configz: KubeletPolicy, policy: KubeletPolicy
) -> None:
    """The state file has precedence over configz, and static makes the agent observe either way."""
    state = tmp_path / "cpu_manager_state"
    if file:
        state.write_text(json.dumps({"policyName": file}))
    node.restart(node.config, state, configz)

    found = node.run()
    assert found.kubelet is policy
    assert found.observes is (policy is STATIC)


@contextmanager
def kubelet(authority: trustme.CA, document: bytes) -> Iterator[tuple[str, list[str | None]]]:
    """Run an HTTPS server with a certificate of this CA; yield its address and the received credentials."""
    credentials: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Send the document."""
            credentials.append(self.headers["authorization"])
            self.send_response(200 if self.path == "/configz" else 404)
            self.send_header("content-length", str(len(document)))
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}", credentials
        finally:
            server.shutdown()
            thread.join()


def settings(node: FakeNode, folder: Path, url: str, trusted: trustme.CA) -> Settings:
    """Return the settings of an agent that may ask this kubelet."""
    trusted.cert_pem.write_to_path(folder / "ca.crt")
    (folder / "token").write_text("secret")
    api = ApiFlags("https://api.test", folder / "ca.crt", folder / "token")
    config = AgentConfig("node-1", folder, kubelet_url=url, api=api)
    return asyncio.run(main._settings(config, node.machine))


def test_agent_starts_with_the_kubelets_settings(node: FakeNode, tmp_path: Path) -> None:
    """Reserved CPUs and policy are read over TLS, with the token and CA of the agent's account."""
    authority = trustme.CA()
    with kubelet(authority, document(cpuManagerPolicy="none", reservedSystemCPUs="1,5")) as (
        url,
        credentials,
    ):
        found = settings(node, tmp_path, url, authority)

    assert (found.config.reserved, found.kubelet_policy) == (CPUSet.parse("1,5"), NONE)
    assert credentials == ["Bearer secret"]


def test_token_is_not_sent_to_an_untrusted_kubelet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A kubelet whose certificate the CA did not sign gets no token, and the default is kept."""
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("secret")

    async def at_once(_: float) -> None:
        await asyncio.sleep(0)

    with kubelet(trustme.CA(), document(reservedSystemCPUs="1,5")) as (url, credentials):
        access = Access(url, tmp_path / "ca.crt", tmp_path / "token")
        found = asyncio.run(ask_kubelet(access, FLAT, sleep=at_once))

    assert (found, credentials) == (None, [])
    assert "certificate" in caplog.records[-1].__dict__["facts"]["reason"]
