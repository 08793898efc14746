"""The migration guide's chapter about Intel CMK: running its blocks in order, and checks of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from tests.docs.blocks import blocks, chapter
from tests.environments.server.apiserver import ApiServer

PAGE: Final = Path("docs/migrate.md").read_text(encoding="utf-8")
FROM_CMK: Final = "From Intel CMK"
CMK_OBJECTS: Final = Path(__file__).with_name("before_migration.yaml")
CORES: Final = "cmk.intel.com/exclusive-cores"
OF_USERS: Final = "deployments,daemonsets,replicasets,services,configmaps,secrets,serviceaccounts"
# Rights of CMK's account through CMK's roles.
RIGHTS: Final = (
    "get secrets",
    "create pods/exec",
    "get nodes",
    "delete nodes",
    "create daemonsets.apps",
    "get /metrics",
    "update mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "create deployments.apps",
    "delete customresourcedefinitions.apiextensions.k8s.io",
    "get cmk-nodereports.intel.com",
)


@dataclass
class Walk:
    """A chapter's commands, run in order with names and numbers of the test in place of the guide's."""

    run: Callable[[str], str]
    title: str = FROM_CMK
    own: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        self.left = blocks(chapter(PAGE, self.title), "sh")
        assert len(self.left) >= 4
        for theirs in self.own:
            assert any(theirs in block for block in self.left), theirs

    def through(self, words: str) -> str:
        """Run all blocks up to the first one with these words, and return its output."""
        assert any(words in block for block in self.left), words
        while True:
            block = self.left.pop(0)
            printed = self.run(self._owned(block))
            if words in block:
                return printed

    def _owned(self, block: str) -> str:
        for theirs, ours in self.own.items():
            block = block.replace(theirs, ours)
        return block


def cmk_objects(*kinds: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of some kinds that CMK's manifests and `cluster-init` create."""
    for it in yaml.safe_load_all(CMK_OBJECTS.read_text(encoding="utf-8")):
        if it["kind"] in kinds and it["metadata"]["name"].startswith("cmk-"):
            yield it


def rights(api: ApiServer) -> set[str]:
    """Return the rights of CMK's account by all of its roles."""
    account = "--as=system:serviceaccount:cmk-namespace:cmk-serviceaccount"

    def may(what: str) -> bool:
        done = api.kubectl("auth", "can-i", *what.split(), "--all-namespaces", account, check=False)
        assert done.stdout.strip() in {"yes", "no"}, done.stderr
        return done.stdout.strip() == "yes"

    return {what for what in RIGHTS if may(what)}


def of_users(api: ApiServer, spaces: Sequence[str], kinds: str = OF_USERS) -> dict[str, str]:
    """Return the users' objects by uid: those in their namespaces without a name of CMK."""
    found = [it for space in spaces for it in api.get("-n", space, kinds)["items"]]
    named = {it["metadata"]["uid"]: f"{it['kind']} {it['metadata']['name']}" for it in found}
    return {uid: name for uid, name in named.items() if " cmk-" not in name}


def differences(run: Callable[[str], str], api: ApiServer, flags: str, nodes: Mapping[str, int]) -> str:
    """Return the changes that another `cluster-init`, and `kubectl apply` of its output, would make.

    `nodes` has the exclusive cores of each node; the first node's are those of nodes without a group. The agents'
    ConfigMap is skipped, because the printed one has no groups.
    """
    command = f"corepin cmk cluster-init {flags}"
    shown = [
        run(f"{command} --host-list={node} --num-exclusive-cores={cores} --diff")
        for node, cores in nodes.items()
    ]
    first = next(iter(nodes.values()))
    printed = yaml.safe_load_all(run(f"{command} --all-hosts --num-exclusive-cores={first}"))
    numbers = ("ConfigMap", "corepin-agent")
    again = [it for it in printed if it and (it["kind"], it["metadata"]["name"]) != numbers]
    diff = ("diff", "--server-side", "--field-manager=kubectl", "-f", "-")
    shown.append(api.kubectl(*diff, input=yaml.safe_dump_all(again), check=False).stdout)
    return "".join(it for it in shown if it != "nothing would change\n")
