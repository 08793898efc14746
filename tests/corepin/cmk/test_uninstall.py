"""`corepin cmk uninstall --apply` on nodes of which one is down; a real API server is in `test_on_a_cluster.py`."""

from __future__ import annotations

import httpx
import pytest

from corepin.cmk.uninstall import clean, reset_pod
from corepin.errors import CommandFailed

AGENT = {
    "metadata": {"namespace": "agents"},
    "spec": {"template": {"spec": {"containers": [{"args": ["agent"]}]}}},
}


def test_a_node_that_is_down_does_not_keep_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """The other nodes are cleaned completely, and the error names the node that is not, with the remedy."""
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path} {request.content.decode()}")
        phase = "Pending" if "reset-down" in request.url.path else "Succeeded"
        return httpx.Response(200, json={"status": {"phase": phase}})

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://it") as api:
        pods = [reset_pod(AGENT, name) for name in ("down", "up")]
        with pytest.raises(CommandFailed, match=r"^not clean after 0 seconds: down: .*--host-list=down$"):
            clean(api, "agents", pods, seconds=0)

    assert capsys.readouterr().out == "node up: uninstalled\n"
    left = {it.split()[1] for it in asked if it.startswith("DELETE ") and "cmk-config-" in it}
    assert left == {"/api/v1/namespaces/agents/configmaps/cmk-config-up"}
    unlabelled = [it.split()[1] for it in asked if "corepin.io/cpu-group" in it]
    assert unlabelled == ["/api/v1/nodes/up"]
