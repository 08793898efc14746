"""`corepin cmk cluster-init`: the overlay `cmk` for chosen nodes, printed or applied; repeating it changes nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.flags import (
    add_obsolete,
    add_pool_flags,
    cores,
    listed_cores,
    mode,
    name,
    note,
    reserved_cpus,
    warn_obsolete,
)
from corepin.cmk.namespaces import DESPITE, marked, namespace, without_namespace
from corepin.cmk.overlay import Choices, overlay
from corepin.documents import write_out
from corepin.errors import CommandFailed
from pinning.contract import AGENT_NAMESPACE, AGENT_NODE_LABEL

if TYPE_CHECKING:
    import argparse

    from corepin.cmk.overlay import Object

EPILOG = """\
Prints what `kubectl apply --server-side -f -` takes, and on standard error how to label the nodes; --apply does both.
The agents run on nodes with the label corepin.io/agent=true. Give the label to nodes that come later, or repeat the
command. Flags of CMK that have no effect here are taken, and say so.

--apply refuses a namespace that holds pods, workloads, Services, volume claims or accounts of others, and a second
installation. A namespace that it creates has the label corepin.io/created-by=cluster-init. Another one than
corepin-agent is printed without its Namespace object, so that `kubectl delete -f -` leaves it. --apply warns of
bindings that give rights to an account with the name of --saname.

examples:
  corepin cmk cluster-init --host-list=node-1,node-2 --cmk-img=registry.example/corepin:0.1.0 --apply
  corepin cmk cluster-init --all-hosts --num-exclusive-cores=6 --num-shared-cores=2 > cmk.yaml
"""
DESCRIPTION = "Install corepin as Intel CMK ran: taint, static pools, injection, reports."
OBSOLETE: Final = {
    "--cmk-cmd-list": "the agent of each node does what these commands did",
    "--cafile": "the webhook's certificate is issued and rotated by itself",
    "--insecure": "API servers reach the webhook with its own certificate, and it knows no other callers",
    "--conf-dir": "the agent of each node keeps what was in it",
}
POLICIES: Final = ("IfNotPresent", "Always", "Never")
_CMK_IMAGE: Final = re.compile(r"(.*/)?cmk([:@].*)?")


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    import argparse

    parser = verbs.add_parser(
        "cluster-init",
        help="install corepin as CMK ran, on some nodes or on all",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_host_flags(parser)
    parser.add_argument("--apply", action="store_true", help="apply it to the cluster instead of printing it")
    force = "with --apply: take over fields that other managers set, as kubectl's flag does"
    parser.add_argument("--force-conflicts", action="store_true", help=force)
    add_pool_flags(parser)
    _add_install_flags(parser)
    add_obsolete(parser, "--cmk-cmd-list", "--cafile", "--conf-dir")
    add_obsolete(parser, "--insecure", value=False)
    parser.set_defaults(cmk=run)


def _add_install_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is installed, and where."""
    parser.add_argument(
        "--no-taint", action="store_true", help="do not taint the nodes with cmk=true:NoSchedule"
    )
    parser.add_argument("--cmk-img", metavar="IMAGE", default="", help="the image of corepin, where yours is")
    parser.add_argument(
        "--cmk-img-pol",
        metavar="POLICY",
        default=POLICIES[0],
        help=f"{', '.join(POLICIES)} (default: {POLICIES[0]})",
    )
    parser.add_argument(
        "--pull-secret", metavar="NAME", default="", help="the Secret with which the image is pulled"
    )
    directory = (
        "the hosts' directory of the command `cmk`, which containers see as /opt/bin (default: /opt/bin)"
    )
    parser.add_argument("--install-dir", metavar="DIR", default="/opt/bin", help=directory)
    account = "the account that CMK's injection gives to pods (default: cmk-serviceaccount)"
    parser.add_argument("--saname", metavar="NAME", default="cmk-serviceaccount", help=account)
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default=AGENT_NAMESPACE,
        help=f"of the agents, and of nothing else (default: {AGENT_NAMESPACE})",
    )


def add_host_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose nodes."""
    hosts = parser.add_mutually_exclusive_group(required=True)
    hosts.add_argument("--host-list", metavar="NODE,...", help="the nodes, separated by commas")
    hosts.add_argument("--all-hosts", action="store_true", help="every Linux node that takes pods now")


def run(args: argparse.Namespace) -> int:
    """Print the overlay, or apply it and label the nodes."""
    hosts = read_hosts(args.host_list)
    choices = read_choices(args)
    documents = overlay(choices)
    warn_obsolete(args, OBSOLETE)
    if args.apply:
        from corepin.cmk.install import install

        install(documents, hosts, choices.namespace, force=args.force_conflicts)
        _warn_of_rights(choices.account)
        return 0
    _print(documents, choices.namespace)
    which = " ".join(hosts) if hosts else "-l kubernetes.io/os=linux"
    note(f"the agents wait for a label: kubectl label node {which} {AGENT_NODE_LABEL}=true")
    return 0


def _warn_of_rights(account: str) -> None:
    """Warn of bindings that name the account which pods get: it is meant to have no rights."""
    from corepin.cmk.account_rights import account_warnings
    from corepin.cmk.requests import kube_client

    with kube_client() as api:
        for warning in account_warnings(api, account):
            note(warning)


def _print(documents: list[Object], place: str) -> None:
    """Print the objects; a namespace that was chosen is not among them, so that deleting them leaves it."""
    from kubeyaml.writer import write_yaml

    write_out(write_yaml(without_namespace(marked(documents, place), place)))
    if place != AGENT_NAMESPACE:
        create = f"kubectl create namespace {place}"
        level = f"kubectl label namespace {place} pod-security.kubernetes.io/enforce=privileged"
        note(
            f"warning: the Namespace {place} is not printed, so that deleting the objects leaves it: {create}; {level}"
        )
        note(f"warning: use a namespace that has nothing else: in {place} {DESPITE}")


def read_hosts(given: str | None) -> tuple[str, ...]:
    """Return the nodes of a list, none for all; raise CommandFailed for what names no node."""
    if given is None:
        return ()
    hosts = tuple(dict.fromkeys(host.strip() for host in given.split(",") if host.strip()))
    if not hosts:
        raise CommandFailed(f"--host-list: {given!r} names no node: write for example node-1,node-2")
    return tuple(name("--host-list", host) for host in hosts)


def read_choices(args: argparse.Namespace) -> Choices:
    """Return what the flags say; raise CommandFailed with flag, value and remedy."""
    choices = Choices(
        exclusive_cores=cores("--num-exclusive-cores", args.num_exclusive_cores),
        shared_cores=cores("--num-shared-cores", args.num_shared_cores),
        exclusive_mode=mode("--exclusive-mode", args.exclusive_mode),
        shared_mode=mode("--shared-mode", args.shared_mode),
        non_isolcpus=listed_cores("--excl-non-isolcpus", args.excl_non_isolcpus),
        reserved=reserved_cpus(args.reserved_cpus) or "",
        image=_image(args.cmk_img),
        pull_policy=_pull_policy(args.cmk_img_pol),
        pull_secret=name("--pull-secret", args.pull_secret) if args.pull_secret else "",
        install_dir=_directory(args.install_dir),
        account=name("--saname", args.saname),
        namespace=namespace(args.namespace),
        has_taint=not args.no_taint,
    )
    if not choices.exclusive_cores and not choices.non_isolcpus:
        problem = "--num-exclusive-cores: 0 leaves no core that could be exclusive"
        raise CommandFailed(f"{problem}: write 1 or more, or list cores with --excl-non-isolcpus")
    if choices.non_isolcpus:
        note("--excl-non-isolcpus: CMK read core numbers, corepin CPU numbers; each CPU stands for its core")
    return choices


def _image(text: str) -> str:
    if _CMK_IMAGE.fullmatch(text):
        problem = f"--cmk-img: {text!r} is an image of Intel CMK"
        raise CommandFailed(f"{problem}: name yours of corepin, for example registry.example/corepin:0.1.0")
    if text.split() != ([text] if text else []):
        raise CommandFailed(
            f"--cmk-img: {text[:60]!r} is no image: write for example registry.example/corepin:0.1.0"
        )
    return text


def _pull_policy(text: str) -> str:
    if text not in POLICIES:
        raise CommandFailed(f"--cmk-img-pol: {text[:60]!r} is unknown: write {', '.join(POLICIES)}")
    return text


def _directory(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/") or text.strip("/") == "" or not text.isprintable():
        raise CommandFailed(
            f"--install-dir: {text[:60]!r} is no directory of a host: write for example /opt/bin"
        )
    return text.rstrip("/")
