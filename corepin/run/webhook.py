"""`corepin webhook`: serve admission reviews over TLS."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from corepin.documents import write_out
from corepin.errors import CommandFailed
from corepin.flags import add_flag, add_list_flag, add_optional_flag, address, listed
from corepin.rule_files import add_rule_flags, rule_files

if TYPE_CHECKING:
    import argparse

    from webhook.server.listener import Address
    from webhook.server.loader import DeciderLoader
    from webhook.server.process import Options

MOST_MEBIBYTES = 1024
DESCRIPTION = "Serve admission reviews over TLS: complete pods, and check pods and virtual machines."
EPILOG = """\
POST /mutate and /validate answer reviews of admission.k8s.io/v1. The plain listener has /healthz, /readyz and
/metrics. Certificates, configuration and mutations are re-read when their bytes change; invalid ones are rejected, with
the reason in the log, and the previous ones stay in use. SIGTERM drains: requests that have begun are answered, then it
exits with 0.
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the verb `webhook` to the command."""
    parser = subparsers.add_parser(
        "webhook", help="serve admission reviews over TLS", description=DESCRIPTION, epilog=EPILOG
    )
    every = "an empty HOST is every interface"
    add_flag(parser, "--listen", "HOST:PORT", f"where to serve reviews over TLS; {every}", ":8443")
    add_flag(parser, "--tls-cert", "FILE", "certificate chain in PEM", "/etc/corepin/tls/tls.crt")
    add_flag(parser, "--tls-key", "FILE", "its private key in PEM", "/etc/corepin/tls/tls.key")
    add_optional_flag(
        parser,
        "--client-ca",
        "FILE",
        "serve only clients with a certificate of these CAs; default: every client",
    )
    add_list_flag(
        parser,
        "--client-name",
        "NAME",
        "with --client-ca: serve only this name (common name or subject alternative); may be repeated; default: any name",
    )
    add_rule_flags(parser)
    add_flag(
        parser, "--metrics-listen", "HOST:PORT", "where to serve health and metrics, plain HTTP", ":8080"
    )
    add_optional_flag(
        parser,
        "--watch-nodes-as",
        "DIR",
        "watch the nodes' topology with the service account mounted there; default: nodes are not watched",
    )
    _add_body_limit(parser)
    parser.add_argument(
        "--check-config",
        action="store_true",
        help="check configuration and mutations, and exit: with 0 if both are valid, else with 2 and the reason",
    )
    return parser


def _add_body_limit(parser: argparse.ArgumentParser) -> None:
    add_flag(
        parser,
        "--body-limit",
        "MIB",
        "size limit of a review in MiB; raise it by 13 for each MiB by which etcd's --max-request-bytes is raised, and raise the memory limit too",
        "20",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM, or only check the configuration."""
    from webhook.config.reload import Unusable

    try:
        return _check(args) if args.check_config else _serve(args)
    except Unusable as error:
        raise CommandFailed(str(error)) from error


def _check(args: argparse.Namespace) -> int:
    from webhook.server.loader import DeciderLoader

    files = rule_files(args)
    contents = tuple(file.read() for file in files)
    DeciderLoader(*files)(contents)
    words = [
        "ok" if content is not None else "does not exist, built-in defaults are used" for content in contents
    ]
    write_out("".join(f"{file.path}: {word}\n" for file, word in zip(files, words, strict=True)))
    return 0


def _serve(args: argparse.Namespace) -> int:
    from logs import formatter
    from webhook.server import process
    from webhook.server.loader import DeciderLoader

    options = _options(args)
    build = DeciderLoader(options.config, options.mutations)
    _check_files(options, build)
    formatter.configure()
    logging.getLogger(__name__).info("starting", extra={"facts": _flag_values(args)})
    process.run(options, build)
    return 0


def _check_files(options: Options, build: DeciderLoader) -> None:
    """Raise `Unusable` for invalid files before logging starts, so that the error is the first line."""
    from webhook.server.tls import Identities

    build((options.config.read(), options.mutations.read()))
    Identities(options.tls)(tuple(file.read() for file in options.tls.watched()))


def _options(args: argparse.Namespace) -> Options:
    from webhook.server.process import Options
    from webhook.server.tls import TLSFiles

    config, mutations = rule_files(args)
    names = listed("--client-name", args.client_name)
    if names and not args.client_ca:
        raise CommandFailed(
            "--client-name needs --client-ca, or no client certificate is asked for: give both"
        )
    client_ca = Path(args.client_ca) if args.client_ca else None
    return Options(
        listen=_address("--listen", args.listen),
        metrics_listen=_address("--metrics-listen", args.metrics_listen),
        tls=TLSFiles(Path(args.tls_cert), Path(args.tls_key), client_ca),
        config=config,
        mutations=mutations,
        client_names=names,
        node_account=Path(args.watch_nodes_as) if args.watch_nodes_as else None,
        body_limit=_mebibytes("--body-limit", args.body_limit),
    )


def _mebibytes(flag: str, text: str) -> int:
    """Return the bytes of a flag's value in MiB; raise CommandFailed."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_MEBIBYTES):
        problem = f"{text!r} is not a number of MiB from 1 to {MOST_MEBIBYTES}: write for example 20"
        raise CommandFailed(f"{flag}: {problem}")
    return int(text) * 2**20


def _address(flag: str, text: str) -> Address:
    from webhook.server.listener import Address

    return Address(*address(flag, text, ":8443"))


def _flag_values(args: argparse.Namespace) -> dict[str, object]:
    """Return the effective flags; none of them is a secret."""
    return {name: value for name, value in vars(args).items() if name not in {"run", "verb", "check_config"}}
