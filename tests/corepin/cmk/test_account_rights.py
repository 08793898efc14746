"""Warnings of bindings that give rights to the account which pods get."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from corepin.cmk.account_rights import MOST_NAMED, account_warnings
from corepin.cmk.leftovers import PAGE

ACCOUNT = {"kind": "ServiceAccount", "name": "cmk", "namespace": "telco"}


def binding(name: str, *subjects: Any, place: str = "") -> dict[str, Any]:
    """Return a binding."""
    metadata = {"name": name} | ({"namespace": place} if place else {})
    return {"metadata": metadata, "subjects": list(subjects) or None}


def warned(of_cluster: list[Any], of_places: list[Any], asked: list[str] | None = None) -> list[str]:
    """Return the warnings for a cluster with these bindings, whose API server lists them in pages."""

    def answer(request: httpx.Request) -> httpx.Response:
        (asked if asked is not None else []).append(str(request.url))
        every = of_cluster if "/clusterrolebindings" in request.url.path else of_places
        start, size = int(request.url.params.get("continue", 0)), int(request.url.params["limit"])
        more = {"continue": str(start + size)} if start + size < len(every) else {}
        return httpx.Response(200, json={"items": every[start : start + size], "metadata": more})

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://api") as api:
        return list(account_warnings(api, "cmk"))


@pytest.mark.parametrize(
    ("subject", "is_named"),
    [
        pytest.param(ACCOUNT, True, id="account"),
        pytest.param({"kind": "User", "name": "system:serviceaccount:telco:cmk"}, True, id="its user"),
        pytest.param({"kind": "ServiceAccount", "name": "cmk-2", "namespace": "telco"}, False, id="longer"),
        pytest.param({"kind": "User", "name": "system:serviceaccount:cmk:other"}, False, id="namespace"),
        pytest.param({"kind": "User", "name": "cmk"}, False, id="user of that name"),
        pytest.param({"kind": "User", "name": "mail:cmk"}, False, id="user of another issuer"),
        pytest.param({"kind": "Group", "name": "cmk"}, False, id="group"),
        pytest.param({"kind": "User"}, False, id="no name"),
    ],
)
def test_binding_that_names_the_account(subject: dict[str, Any], *, is_named: bool) -> None:
    """Bindings of any namespace that name the account are found, as ServiceAccount or as user; similar names are not."""
    other = {"kind": "User", "name": "jane"}
    assert bool(warned([binding("b", other, subject), binding("none")], [])) is is_named
    assert bool(warned([], [binding("b", other, subject, place="telco")])) is is_named


def test_warning_names_bindings_and_remedy() -> None:
    """The warning names bindings, with the namespace of a RoleBinding, and the remedy."""
    (warning,) = warned([binding("a", ACCOUNT)], [binding("b", ACCOUNT, place="telco")])
    assert warning == (
        "warning: --saname: pods get an account cmk, and ClusterRoleBinding a, RoleBinding telco/b give it rights:"
        " delete these bindings (`corepin cmk leftovers` lists CMK's, for when no node runs CMK any more), or name another account"
    )


def test_thousands_of_bindings_are_read_in_pages() -> None:
    """The last page counts too, and the warning stays short."""
    asked: list[str] = []
    many = [binding(f"b{at}", ACCOUNT, place="telco") for at in range(20 * PAGE + 1)]
    (warning,) = warned([], many, asked)
    assert len(asked) == 1 + 21
    assert f" and {len(many) - MOST_NAMED} more give it rights" in warning
    assert len(warning) < 1000


def test_default_is_no_account_that_pods_get() -> None:
    """For `default`, which pods keep without an injection, the cluster is not queried."""
    assert list(account_warnings(None, "default")) == []
