"""`corepin cmk cluster-init`: print or apply the manifests `cmk` for chosen nodes; idempotent."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
from corepin.cmk.installed import chosen_over
from corepin.cmk.namespaces import CONSEQUENCE, marked, namespace, without_namespace
from corepin.cmk.numbers import Numbers, Wanted, plan_numbers
from corepin.cmk.overlay import CMK, Choices, agents_config, overlay
from corepin.documents import write_out
from corepin.errors import CommandFailed
from pinning.contract import AGENT_NAMESPACE, AGENT_NODE_LABEL, CPU_GROUP_LABEL
from pinning.planning.cpu_groups import KEY, is_group

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from corepin.cmk.install import Order
    from corepin.cmk.overlay import Object

Value = TypeVar("Value")
EPILOG = """\
Prints objects for `kubectl apply --server-side -f -`, and on standard error the command that labels the nodes. --apply
applies the objects and labels the nodes. The agents run on nodes with the label corepin.io/agent=true. For nodes that
join later, set the label or repeat the command.

--apply and --diff keep the installed values of flags that are not given. Numbers with --all-hosts are for all nodes
without a group (config.yaml). Numbers with --host-list are for these nodes only: if other numbers are installed, the
command labels the nodes with corepin.io/cpu-group=GROUP and writes config.GROUP.yaml. It refuses numbers that do not
fit on a node whose agent has reported its CPUs. Agents read their numbers when they start. Flags of CMK that have no
effect here are accepted with a warning.

--apply has the API server check every object first: if it refuses one, for example because another program has set a
field, nothing is changed.

--apply refuses a namespace that has pods, workloads, Services, volume claims or accounts of other programs, and a
second installation. A namespace that it creates has the label corepin.io/created-by=cluster-init. With --namespace no
Namespace object is printed, so that `kubectl delete -f -` does not delete it. --apply warns about role bindings that
give rights to an account with the name in --saname.

examples:
  corepin cmk cluster-init --host-list=node-1,node-2 --cmk-img=registry.example/corepin:0.1.0 --apply
  corepin cmk cluster-init --host-list=node-3 --num-exclusive-cores=14 --diff
  corepin cmk cluster-init --all-hosts --num-exclusive-cores=6 --num-shared-cores=2 > cmk.yaml
"""
DESCRIPTION = (
    "Install corepin in the place of Intel CMK, with its taint, static pools, injection and reports."
)
OBSOLETE: Final = {
    "--cmk-cmd-list": "the agent of each node does what these commands did",
    "--cafile": "the webhook's certificate is issued and rotated by itself",
    "--insecure": "only API servers call the webhook, and they verify its certificate",
    "--conf-dir": "the agent of each node stores the data of that directory",
}
POLICIES: Final = ("IfNotPresent", "Always", "Never")
_CMK_IMAGE: Final = re.compile(r"(.*/)?cmk([:@].*)?")


def add_parser(verbs: Any) -> None:
    """Add the verb `cluster-init` to `corepin cmk`."""
    import argparse

    parser = verbs.add_parser(
        "cluster-init",
        help="install corepin in the place of CMK, on some nodes or on all",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_host_flags(parser, "every Linux node that takes pods now")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--apply", action="store_true", help="apply the objects and label the nodes, instead of printing"
    )
    text = "show what --apply would change, and change nothing; exit code 1 if there are changes"
    what.add_argument("--diff", action="store_true", help=text)
    force = "with --apply: take over fields that other field managers own, as kubectl's flag does"
    parser.add_argument("--force-conflicts", action="store_true", help=force)
    add_pool_flags(parser)
    text = "CPU group of the nodes, whose numbers are set (default: named after the numbers, if a group is needed)"
    parser.add_argument("--cpu-group", metavar="NAME", default="", help=text)
    _add_install_flags(parser)
    add_obsolete(parser, "--cmk-cmd-list", "--cafile", "--conf-dir")
    add_obsolete(parser, "--insecure", value=False)
    parser.set_defaults(cmk=run)


def _add_install_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that change the installed objects."""
    taint = parser.add_mutually_exclusive_group()
    text = "do not taint the nodes with cmk=true:NoSchedule"
    taint.add_argument("--no-taint", dest="taint", action="store_const", const=False, help=text)
    text = "taint the nodes, even if they were installed with --no-taint"
    taint.add_argument("--taint", dest="taint", action="store_const", const=True, help=text)
    image = "the image of corepin in your registry (default: corepin, which the nodes must have already)"
    parser.add_argument("--cmk-img", metavar="IMAGE", help=image)
    parser.add_argument(
        "--cmk-img-pol",
        metavar="POLICY",
        help=f"{', '.join(POLICIES)} (default: {POLICIES[0]})",
    )
    parser.add_argument("--pull-secret", metavar="NAME", help="the Secret with which the image is pulled")
    directory = (
        "the hosts' directory of the command `cmk`, which containers see as /opt/bin (default: /opt/bin)"
    )
    parser.add_argument("--install-dir", metavar="DIR", help=directory)
    account = "the account that CMK's injection gives to pods (default: cmk-serviceaccount)"
    parser.add_argument("--saname", metavar="NAME", help=account)
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default=AGENT_NAMESPACE,
        help=f"namespace of the agents, with nothing else in it (default: {AGENT_NAMESPACE})",
    )


def add_host_flags(parser: argparse.ArgumentParser, all_hosts: str) -> None:
    """Add the flags that choose the nodes of an installation; `all_hosts` says which nodes `--all-hosts` chooses."""
    hosts = parser.add_mutually_exclusive_group(required=True)
    hosts.add_argument("--host-list", metavar="NODE,...", help="the nodes, separated by commas")
    hosts.add_argument("--all-hosts", action="store_true", help=all_hosts)


def run(args: argparse.Namespace) -> int:
    """Print the manifests, show the changes they would make, or apply them and label the nodes."""
    from corepin.cmk.install import Order, install, show

    hosts, place = read_hosts(args.host_list), namespace(args.namespace)
    choices, wanted = read_choices(args), read_wanted(args)
    warn_obsolete(args, OBSOLETE)
    order = Order(hosts, choices, wanted, place)
    if args.diff:
        return int(show(order))
    if args.apply:
        account = install(order, force=args.force_conflicts)
        _warn_of_rights(account)
        return 0
    _print(order)
    return 0


def _print(order: Order) -> None:
    """Print the objects for a cluster without an installation, and the commands that label the nodes."""
    documents = overlay(chosen_over(order.choices, CMK), order.namespace)
    config = agents_config(documents)
    wanted = order.wanted
    config["data"] = dict(plan_numbers(wanted, None, config["data"][KEY], {}).keys)
    _print_objects(documents, order.namespace)
    if order.hosts and wanted.numbers.is_given and not wanted.group:
        note(
            "warning: these numbers are for all nodes without a group; add --apply or --cpu-group to set only"
            " those of the hosts"
        )
    which = " ".join(order.hosts) if order.hosts else "-l kubernetes.io/os=linux"
    group = f" {CPU_GROUP_LABEL}={wanted.group}" if wanted.group else ""
    note(f"the agents wait for a label: kubectl label node {which} {AGENT_NODE_LABEL}=true{group}")


def _warn_of_rights(account: str) -> None:
    """Warn about role bindings for the pods' service account, which should have no rights."""
    from corepin.cmk.account_rights import account_warnings
    from corepin.cmk.requests import kube_client

    with kube_client() as api:
        for warning in account_warnings(api, account):
            note(warning)


def _print_objects(documents: list[Object], place: str) -> None:
    """Print the objects, except a Namespace that the user chose, so that deleting them keeps it."""
    from kubeyaml.writer import write_yaml

    write_out(write_yaml(without_namespace(marked(documents, place), place)))
    if place != AGENT_NAMESPACE:
        create = f"kubectl create namespace {place}"
        level = f"kubectl label namespace {place} pod-security.kubernetes.io/enforce=privileged"
        note(
            f"warning: the Namespace {place} is not printed, so that deleting the objects leaves it: {create}; {level}"
        )
        note(f"warning: use a namespace that has nothing else than corepin in {place}: {CONSEQUENCE}")


def read_hosts(given: str | None) -> tuple[str, ...]:
    """Return the node names in a list, an empty tuple for "all"; raise CommandFailed for an invalid name."""
    if given is None:
        return ()
    hosts = tuple(dict.fromkeys(host.strip() for host in given.split(",") if host.strip()))
    if not hosts:
        raise CommandFailed(f"--host-list: {given!r} names no node: write for example node-1,node-2")
    return tuple(name("--host-list", host) for host in hosts)


def read_choices(args: argparse.Namespace) -> Choices:
    """Return the installation flags; raise CommandFailed with flag, value and remedy."""
    return Choices(
        image=_read(_image, args.cmk_img),
        pull_policy=_read(_pull_policy, args.cmk_img_pol),
        pull_secret=name("--pull-secret", args.pull_secret) if args.pull_secret else args.pull_secret,
        install_dir=_read(_directory, args.install_dir),
        account=_read(partial(name, "--saname"), args.saname),
        has_taint=args.taint,
    )


def read_wanted(args: argparse.Namespace) -> Wanted:
    """Return the flags for cores and groups; raise CommandFailed with flag, value and remedy."""
    numbers = Numbers(
        exclusive_cores=_read(partial(cores, "--num-exclusive-cores"), args.num_exclusive_cores),
        shared_cores=_read(partial(cores, "--num-shared-cores"), args.num_shared_cores),
        exclusive_mode=_read(partial(mode, "--exclusive-mode"), args.exclusive_mode),
        shared_mode=_read(partial(mode, "--shared-mode"), args.shared_mode),
        non_isolcpus=_read(partial(listed_cores, "--excl-non-isolcpus"), args.excl_non_isolcpus),
        reserved=reserved_cpus(args.reserved_cpus),
    )
    if args.cpu_group and not is_group(args.cpu_group):
        problem = f"--cpu-group: {args.cpu_group[:60]!r} is not a valid group name"
        raise CommandFailed(f"{problem}: write up to 63 letters, digits, -, _ and dots, for example big")
    if numbers.non_isolcpus:
        note("--excl-non-isolcpus: CMK read core numbers, corepin CPU numbers; each CPU stands for its core")
    return Wanted(numbers, args.cpu_group, is_for_all=args.host_list is None)


def _read(read: Callable[[str], Value], text: str | None) -> Value | None:
    """Return a flag's value, None if it is not given."""
    return None if text is None else read(text)


def _image(text: str) -> str:
    if _CMK_IMAGE.fullmatch(text):
        problem = f"--cmk-img: {text!r} is an image of Intel CMK"
        raise CommandFailed(f"{problem}: name yours of corepin, for example registry.example/corepin:0.1.0")
    if text.split() != ([text] if text else []):
        raise CommandFailed(
            f"--cmk-img: {text[:60]!r} is not an image: write for example registry.example/corepin:0.1.0"
        )
    return text


def _pull_policy(text: str) -> str:
    if text not in POLICIES:
        raise CommandFailed(f"--cmk-img-pol: {text[:60]!r} is unknown: write {', '.join(POLICIES)}")
    return text


def _directory(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/") or text.strip("/") == "" or not text.isprintable():
        raise CommandFailed(
            f"--install-dir: {text[:60]!r} is not a host directory: write for example /opt/bin"
        )
    return text.rstrip("/")
