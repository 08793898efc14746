"""`corepin certs run`: rotate the webhook's certificates, in a Secret and in the webhook configurations."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from corepin.documents import write_out
from corepin.errors import CommandFailed
from corepin.flags import add_flag, add_list_flag, listed, optional_address, remote_address

if TYPE_CHECKING:
    import argparse

    from certs.metrics import Metrics
    from certs.probe import Address
    from certs.rotation import Step
    from certs.rotator import Rotator

# Name of corepin's mutating and of its validating webhook configuration.
CONFIGURATIONS: Final = frozenset({"zz-corepin"})
REPLICAS: Final = "corepin-webhook-replicas:8443"
DESCRIPTION: Final = (
    "Issue and rotate the webhook's CA and certificate, and publish the CA in every caBundle."
)
EPILOG: Final = """\
Every step is decided from the Secret, the webhook configurations, the replicas' certificates, and the clock, so that
the program may be killed at any point and continues from there. It needs get and patch on that Secret and on the named
configurations, and may create events. To issue a new CA at once: kubectl annotate secret NAME certs.corepin.io/rotate=ca
"""

logger = logging.getLogger(__name__)


def add_parser(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the action `run` to `corepin certs`."""
    parser = actions.add_parser(
        "run", help="issue and rotate the webhook's certificates", description=DESCRIPTION, epilog=EPILOG
    )
    add_flag(parser, "--namespace", "NAME", "namespace of Secret and Service", "corepin-system")
    stored = "the Secret of CA and certificate; it must exist, and may be empty"
    add_flag(parser, "--secret", "NAME", stored, "corepin-webhook-tls")
    add_flag(parser, "--service", "NAME", "the Service that API servers call", "corepin-webhook")
    add_list_flag(
        parser,
        "--replicas",
        "HOST:PORT",
        f"address of every replica, e.g. a headless Service; may be repeated; default: {REPLICAS}",
    )
    add_list_flag(
        parser,
        "--webhook-configurations",
        "NAME",
        f"webhook configurations that get the CA, mutating or validating; may be repeated; default: {','.join(sorted(CONFIGURATIONS))}",
    )
    add_flag(
        parser, "--settle", "SECONDS", "how long API servers may take to notice a changed caBundle", "60"
    )
    add_flag(
        parser,
        "--kubelet-sync",
        "SECONDS",
        "how long a kubelet may still give an old Secret to a replica that starts: more than its syncFrequency",
        "90",
    )
    add_flag(parser, "--interval", "SECONDS", "the longest wait between two checks", "10")
    text = "where to serve metrics, plain HTTP; off: not served"
    add_flag(parser, "--metrics-listen", "HOST:PORT", text, ":8082")
    parser.add_argument("--once", action="store_true", help="take the steps that are possible now, and exit")
    return parser


@dataclass(frozen=True, slots=True)
class Options:
    """Parsed options of `corepin certs run`."""

    namespace: str
    secret: str
    service: str
    replicas: tuple[Address, ...]
    configurations: tuple[str, ...]
    settle: timedelta
    kubelet_sync: timedelta
    interval: timedelta
    metrics_listen: tuple[str, int] | None
    is_once: bool


def run(args: argparse.Namespace) -> int:
    """Rotate certificates until SIGTERM; with --once take only the steps that are possible now."""
    from logs import formatter

    options = options_of(args)
    formatter.configure()
    facts = {name: value for name, value in vars(args).items() if name not in {"run", "verb", "action"}}
    logger.info("starting", extra={"facts": facts})
    return _run(options)


def options_of(args: argparse.Namespace) -> Options:
    """Return the options; raise CommandFailed for an invalid flag."""
    return Options(
        namespace=args.namespace,
        secret=args.secret,
        service=args.service,
        replicas=_replicas(args.replicas, args.namespace),
        configurations=tuple(
            sorted(listed("--webhook-configurations", args.webhook_configurations) or CONFIGURATIONS)
        ),
        settle=_seconds("--settle", args.settle),
        kubelet_sync=_seconds("--kubelet-sync", args.kubelet_sync),
        interval=_seconds("--interval", args.interval),
        metrics_listen=optional_address("--metrics-listen", args.metrics_listen, ":8082"),
        is_once=args.once,
    )


def _run(options: Options) -> int:
    from certs.cluster import ClusterError, KubeCluster, Names, client
    from certs.metrics import Metrics
    from certs.probe import Probe
    from certs.rotation import RotationSettings
    from certs.rotator import Rotator

    server_name = f"{options.service}.{options.namespace}.svc"
    dns_names = (server_name, f"{server_name}.cluster.local")
    settings = RotationSettings(dns_names, options.settle, options.kubelet_sync)
    names = Names(options.namespace, options.secret, options.configurations)
    metrics = Metrics()
    try:
        with ExitStack() as stack:
            api = stack.enter_context(client())
            _serve_metrics(options.metrics_listen, metrics, stack)
            probe = Probe(options.replicas, server_name)
            rotator = Rotator(KubeCluster(api, names), probe, settings, metrics)
            return _once(rotator) if options.is_once else _loop(rotator, metrics, options.interval)
    except ClusterError as error:
        raise CommandFailed(str(error)) from error


def _once(rotator: Rotator) -> int:
    """Take the steps that are possible now, and print the next step."""
    from certs.rotation import Refuse, Wait

    step = rotator.settle()
    if isinstance(step, Refuse):
        raise CommandFailed(step.reason)
    message = (
        f"waiting: {step.reason}"
        if isinstance(step, Wait)
        else "nothing to do: certificates and webhook configurations agree"
    )
    write_out(f"{message}\n")
    return 0


def _loop(rotator: Rotator, metrics: Metrics, interval: timedelta) -> int:
    """Run passes until SIGTERM; a failed one is retried."""
    from certs.cluster import ClusterError

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    seconds = 0.0
    while not stop.wait(seconds):
        seconds = interval.total_seconds()
        try:
            seconds = _pause(rotator.settle(), interval)
        except ClusterError as error:
            metrics.errors.inc()
            logger.warning("pass failed", extra={"facts": {"reason": str(error)}})
        except Exception:
            metrics.errors.inc()
            logger.exception("pass failed")
    logger.info("stopped")
    return 0


def _pause(step: Step, interval: timedelta) -> float:
    """Return the seconds until the time of the next step, at most the interval."""
    from certs.rotation import Wait

    longest = interval.total_seconds()
    if not isinstance(step, Wait) or step.until is None:
        return longest
    left = (step.until - datetime.now(step.until.tzinfo)).total_seconds()
    return min(longest, max(left, 0.0) + 0.01)


def _serve_metrics(listen: tuple[str, int] | None, metrics: Metrics, stack: ExitStack) -> None:
    from prometheus_client import start_http_server

    if listen is None:
        return
    host, port = listen
    everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - as the flag says
    try:
        server, thread = start_http_server(port, host or everywhere, metrics.registry)
    except OSError as error:
        problem = f"--metrics-listen: cannot listen on {host}:{port}: {error.strerror}"
        raise CommandFailed(f"{problem}: name another address, or off") from error
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    logger.info("serving", extra={"facts": {"metrics": f"{host}:{server.server_port}"}})


def _replicas(given: list[str] | None, namespace: str) -> tuple[Address, ...]:
    from certs.probe import Address

    texts = sorted(listed("--replicas", given) or {REPLICAS})
    found = [remote_address("--replicas", text, REPLICAS) for text in texts]
    return tuple(Address(_host(host, namespace), port) for host, port in found)


def _host(host: str, namespace: str) -> str:
    """Return the DNS name of a host; a bare Service name gets the namespace and `svc` added."""
    return host if "." in host or ":" in host or host == "localhost" else f"{host}.{namespace}.svc"


def _seconds(flag: str, text: str) -> timedelta:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < timedelta(days=1).total_seconds():
        raise CommandFailed(f"{flag}: {text!r} is not a number of seconds up to a day: write for example 60")
    return timedelta(seconds=seconds)
