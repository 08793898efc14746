"""Warnings about role bindings for the service account that injected CMK pods get. Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.leftovers import pages
from corepin.cmk.requests import JSON, Answered

if TYPE_CHECKING:
    from collections.abc import Iterator

_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
KINDS: Final = (("clusterrolebindings", "ClusterRoleBinding"), ("rolebindings", "RoleBinding"))
MOST_NAMED: Final = 10
_USER: Final = "system:serviceaccount:"
_NO_RIGHTS: Final = "default"  # account that the webhook never gives to pods


def account_warnings(api: Any, account: str) -> Iterator[str]:
    """Yield a warning if role bindings name an account of this name, and one for each kind that cannot be listed."""
    if account == _NO_RIGHTS:
        return
    named: list[str] = []
    unknown: list[str] = []
    for plural, kind in KINDS:
        try:
            named += (
                _called(kind, it) for it in pages(api, f"{_RBAC}/{plural}", JSON) if _names(it, account)
            )
        except Answered as error:
            unknown.append(f"whether a {kind} gives rights to an account {account} is not known: {error}")
    if named:
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        problem = f"--saname: pods get an account {account}, and {', '.join(named[:MOST_NAMED])}{more} give it rights"
        remedy = (
            "delete these bindings (`corepin cmk leftovers` lists CMK's, for when no node runs CMK any more)"
        )
        yield f"warning: {problem}: {remedy}, or name another account"
    yield from (f"warning: --saname: {it}" for it in unknown)


def _called(kind: str, binding: Any) -> str:
    metadata = binding["metadata"]
    place = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{kind} {place}{metadata['name']}"


def _names(binding: Any, account: str) -> bool:
    """Return whether a binding's subject is a service account of this name in any namespace, or its user name."""
    for subject in binding.get("subjects") or ():
        name = subject.get("name") or ""
        if subject.get("kind") == "ServiceAccount" and name == account:
            return True
        if subject.get("kind") == "User" and name.startswith(_USER) and name.endswith(f":{account}"):
            return True
    return False
