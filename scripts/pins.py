"""Copy the pins of `pins.toml` to the files that use them; `--renew` first gets the newest from registries.

Workflows and Dockerfiles cannot read another file, so they contain copies of the pins.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Fetch = Callable[[str, Mapping[str, str]], tuple[Any, Mapping[str, str]]]

FILE: Final = Path("pins.toml")
DOCKERFILE: Final = Path("Dockerfile")
WORKFLOWS: Final = Path(".github/workflows")
BASE: Final = "docker.io/library/debian"
DAY_OLD: Final = timedelta(days=1)  # age at which a snapshot is complete
SECONDS: Final = 30
_INDEX: Final = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
)
_DATED: Final = re.compile(r"bookworm-[0-9]{8}-slim")


class NotRenewed(Exception):
    """A registry does not answer; the message names it, with the remedy."""


@dataclass(frozen=True, slots=True)
class Pins:
    """Base image, time of Debian's package snapshot, and commit and tag of each action."""

    base: str
    snapshot: str
    actions: Mapping[str, tuple[str, str]]


def read(text: str) -> Pins:
    """Return the pins in a file."""
    content = tomllib.loads(text)
    actions = {name: (it["commit"], it["tag"]) for name, it in content["actions"].items()}
    return Pins(content["image"]["base"], content["image"]["snapshot"], actions)


def pinned_file(text: str, pins: Pins) -> str:
    """Return the file with other pins."""
    text = re.sub(r'^(base = ").*(")$', rf"\g<1>{pins.base}\2", text, flags=re.MULTILINE)
    text = re.sub(r'^(snapshot = ").*(")$', rf"\g<1>{pins.snapshot}\2", text, flags=re.MULTILINE)
    for name, (commit, tag) in pins.actions.items():
        line = f'"{name}" = {{commit = "{commit}", tag = "{tag}"}}'
        text = re.sub(rf'^"{name}" = .*$', line, text, flags=re.MULTILINE)
    return text


def pinned_dockerfile(text: str, pins: Pins) -> str:
    """Return the Dockerfile with the pinned base and snapshot."""
    text = re.sub(r"^ARG BASE=.*$", f"ARG BASE={pins.base}", text, flags=re.MULTILINE)
    return re.sub(r"^ARG SNAPSHOT=.*$", f"ARG SNAPSHOT={pins.snapshot}", text, flags=re.MULTILINE)


def pinned_workflow(text: str, pins: Pins) -> str:
    """Return a workflow with each action by its commit; raise KeyError for one that is not pinned."""

    def used(found: re.Match[str]) -> str:
        commit, tag = pins.actions[found[2]]
        return f"{found[1]}{found[2]}@{commit} # {tag}"

    return re.sub(r"(\buses: )([\w./-]+)@.*$", used, text, flags=re.MULTILINE)


def renewed(pins: Pins, fetch: Fetch, now: datetime) -> Pins:
    """Return the newest pins within the major versions in use; raise NotRenewed."""
    actions = {name: _newest(name, tag, fetch) for name, (_, tag) in pins.actions.items()}
    snapshot = (now - DAY_OLD).strftime("%Y%m%dT000000Z")
    return replace(pins, base=_newest_base(fetch), snapshot=snapshot, actions=actions)


def _newest_base(fetch: Fetch) -> str:
    place = "https://auth.docker.io/token?service=registry.docker.io&scope=repository:library/debian:pull"
    bearer = {"authorization": f"Bearer {fetch(place, {})[0]['token']}"}
    registry = "https://registry-1.docker.io/v2/library/debian"
    tags = fetch(f"{registry}/tags/list", bearer)[0]["tags"]
    tag = max(filter(_DATED.fullmatch, tags))
    _, headers = fetch(f"{registry}/manifests/{tag}", {**bearer, "accept": _INDEX})
    return f"{BASE}:{tag}@{headers['docker-content-digest']}"


def _newest(action: str, tag: str, fetch: Fetch) -> tuple[str, str]:
    """Return commit and tag of the newest release of the same major version."""
    place = f"https://api.github.com/repos/{action}"
    found, _ = fetch(f"{place}/git/matching-refs/tags/{tag.partition('.')[0]}.", {})
    names = [it["ref"].removeprefix("refs/tags/") for it in found]
    name = max((it for it in names if re.fullmatch(r"v\d+\.\d+\.\d+", it)), key=_numbers)
    return fetch(f"{place}/commits/{name}", {})[0]["sha"], name


def _numbers(tag: str) -> tuple[int, ...]:
    return tuple(map(int, tag[1:].split(".")))


def fetched(url: str, headers: Mapping[str, str]) -> tuple[Any, Mapping[str, str]]:
    """Return a JSON document of a URL with its headers; raise NotRenewed if there is none."""
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - https, as written above
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - the same
            return json.load(answer), {name.lower(): value for name, value in answer.headers.items()}
    except (OSError, urllib.error.URLError, ValueError) as error:
        host = url.split("/")[2]
        remedy = "renew the pins on a machine that reaches it; nothing was changed"
        raise NotRenewed(f"{host}: {error}: {remedy}") from error


def main(arguments: list[str]) -> int:
    """Write the pins to the files that use them, renewed first with `--renew`."""
    text = FILE.read_text(encoding="utf-8")
    pins = read(text)
    if "--renew" in arguments:
        try:
            pins = renewed(pins, fetched, datetime.now(UTC))
        except NotRenewed as error:
            sys.stderr.write(f"renew-pins: {error}\n")
            return 1
        FILE.write_text(pinned_file(text, pins), encoding="utf-8")
    for path in sorted(WORKFLOWS.glob("*.yaml")):
        path.write_text(pinned_workflow(path.read_text(encoding="utf-8"), pins), encoding="utf-8")
    DOCKERFILE.write_text(pinned_dockerfile(DOCKERFILE.read_text(encoding="utf-8"), pins), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
