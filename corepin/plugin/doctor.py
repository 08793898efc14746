"""`kubectl corepin doctor`: run the doctor in the pod of a node's agent, by `kubectl exec`."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from corepin.documents import write_error, write_out
from corepin.errors import CommandFailed
from corepin.flags import add_noise_flag, add_output_flag, filled
from corepin.node.kube_api import NotFound, add_context_flag, get
from corepin.node.kube_node import only_node
from logs.printable import harmless, harmless_json
from pinning.contract import AGENT_NAMESPACE, PRODUCT

if TYPE_CHECKING:
    import argparse

DESCRIPTION = "Find the problems that prevent pinning on a node, each with its remedy."
EPILOG = """\
`corepin doctor` runs in the pod of the node's agent, by `kubectl exec`. Nothing is changed. Without --node the
only node that has an agent is checked. Only a pod of the agents' namespace whose controller is a DaemonSet there is
trusted with the terminal and the exit code, because any user may set the agent's labels. Exit code: 0 no problem,
1 problems found, 2 the checks failed.
"""
SELECTOR: Final = f"app.kubernetes.io/name={PRODUCT},app.kubernetes.io/component=agent"
CONTAINER: Final = "agent"
OK, FOUND, NOT_LOOKED = 0, 1, 2  # exit codes of `corepin doctor`


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the verb `doctor` to `kubectl corepin`."""
    parser = subparsers.add_parser(
        "doctor", help="find problems that prevent pinning", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("--node", metavar="NAME", type=filled, help="a node of the cluster")
    place = f"namespace of the agents (default: {AGENT_NAMESPACE})"
    parser.add_argument("-n", "--namespace", metavar="NAME", default=AGENT_NAMESPACE, help=place)
    add_context_flag(parser)
    seconds = "how long to watch for foreign threads on exclusive CPUs (default: 1)"
    parser.add_argument("--seconds", metavar="N", default="1", help=seconds)
    add_noise_flag(parser)
    add_output_flag(parser, "JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run `corepin doctor` in the pod of a node's agent; return its exit code."""
    name = _agent_of(args.node or only_node(args.context), args.namespace, args.context)
    kubectl = ["kubectl", *(("--context", args.context) if args.context else ())]
    there = ["exec", "--namespace", args.namespace, name, "--container", CONTAINER, "--", PRODUCT, "doctor"]
    noise = () if args.noise is None else ("--noise", args.noise)
    flags = ["--seconds", args.seconds, *noise, "--output", args.output]
    try:
        done = subprocess.run([*kubectl, *there, *flags], capture_output=True, check=False)  # noqa: S603 - as its user types it
    except FileNotFoundError as error:
        raise CommandFailed(
            "kubectl is not on the PATH: install it, because the doctor runs in the agent's pod by `kubectl exec`"
        ) from error
    if done.stderr:
        write_error(done.stderr.decode(errors="replace").rstrip("\n"))
    text = done.stdout.decode(errors="replace")
    write_out(harmless_json(text) if args.output == "json" else harmless(text))
    if done.returncode in {OK, NOT_LOOKED} or (done.returncode == FOUND and text.strip()):
        return done.returncode
    raise CommandFailed(  # kubectl also exits with 1 on its own errors, for example without the right to exec
        f"kubectl exec ended with {done.returncode}, and the doctor in pod {args.namespace}/{name} has not finished:"
        " see the message above, and repeat the command"
    )


def _agent_of(node: str, namespace: str, context: str | None) -> str:
    """Return the name of the agent's pod on a node; raise CommandFailed if there is none."""
    placed = {"labelSelector": SELECTOR, "fieldSelector": f"spec.nodeName={node},status.phase=Running"}
    folder = quote(namespace, safe="")
    found = get(f"/api/v1/namespaces/{folder}/pods", f"pods of namespace {namespace}", context, **placed)[
        "items"
    ]
    lasting = [pod["metadata"] for pod in found if not pod["metadata"].get("deletionTimestamp")]
    for metadata in lasting:
        if _is_of_daemon_set(metadata, folder, context):
            return str(metadata["name"])
    if found and not lasting:
        ending = f"no corepin agent on node {node} in namespace {namespace} (pod {found[0]['metadata']['name']} is ending)"
        raise CommandFailed(f"{ending}: repeat the command when the next one runs")
    reason = (
        "none of the pods with its labels is controlled by a DaemonSet there" if found else "no such pod runs"
    )
    remedy = f"`kubectl get pods -A -l {SELECTOR}` lists candidates, and --namespace names the namespace of the agents"
    raise CommandFailed(f"no corepin agent on node {node} in namespace {namespace} ({reason}): {remedy}")


def _is_of_daemon_set(metadata: dict[str, Any], folder: str, context: str | None) -> bool:
    """Return whether a DaemonSet of the namespace controls the pod; users may forge the pod's owner reference."""
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and (owner["apiVersion"], owner["kind"]) == ("apps/v1", "DaemonSet"):
            path = f"/apis/apps/v1/namespaces/{folder}/daemonsets/{quote(owner['name'], safe='')}"
            try:
                found = get(path, f"DaemonSet {owner['name']}", context)
            except NotFound:
                return False
            return bool(found["metadata"]["uid"] == owner["uid"])
    return False
