"""The demo's webhook process with a new CA, and the API server's requests to it."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import jsonpatch

if TYPE_CHECKING:
    from collections.abc import Iterator

COREPIN: Final = str(Path(sys.executable).with_name("corepin"))
START_SECONDS: Final = 180.0  # 2 s on an idle machine
ANSWER_SECONDS: Final = 60.0  # milliseconds on an idle machine
NAMESPACE: Final = "demo"
PLURALS: Final = {"VirtualMachineInstance": "virtualmachineinstances"}


class DemoFailed(Exception):
    """A result of the demo is not the expected one; the message has the reason."""


@dataclass
class Answer:
    """The responses of both webhooks for one object."""

    stored: dict[str, Any]
    patch: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    causes: list[dict[str, str]] = field(default_factory=list)
    allowed: bool = True

    @property
    def verdict(self) -> str:
        """The outcome in a word."""
        if not self.allowed:
            return "refused"
        return "patched" if self.patch else "allowed"


@dataclass
class Client:
    """Acts as API server: calls the mutating webhook, applies the patch, and calls the validating webhook."""

    http: httpx.Client
    reviews: int = 0

    def create(self, content: dict[str, Any]) -> Answer:
        """Return the answer for an object that a user creates in the demo's namespace."""
        content = {**content, "metadata": {**content["metadata"], "namespace": NAMESPACE}}
        mutated = self._review("/mutate", content)
        patch = json.loads(base64.b64decode(mutated["patch"])) if "patch" in mutated else []
        stored = jsonpatch.apply_patch(content, patch)
        validated = self._review("/validate", stored)
        warnings = [*mutated.get("warnings", ()), *validated.get("warnings", ())]
        details = validated.get("status", {}).get("details", {})
        return Answer(
            stored, patch, list(dict.fromkeys(warnings)), details.get("causes", []), validated["allowed"]
        )

    def _review(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        review = review_of(content)
        answered = self.http.post(path, json=review)
        self.reviews += 1
        if answered.status_code != httpx.codes.OK:
            raise DemoFailed(f"{path} answered {answered.status_code}: {answered.text}")
        response: dict[str, Any] = answered.json()["response"]
        if response["uid"] != review["request"]["uid"]:
            raise DemoFailed(f"{path} answered another review")
        return response


def review_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return the AdmissionReview that the API server would send when a user creates the object."""
    group, _, version = content["apiVersion"].rpartition("/")
    kind = content["kind"]
    resource = {"group": group, "version": version, "resource": PLURALS.get(kind, f"{kind.lower()}s")}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": resource,
            "operation": "CREATE",
            "name": content["metadata"]["name"],
            "namespace": NAMESPACE,
            "userInfo": {"username": "newcomer", "groups": ["system:authenticated"]},
            "object": content,
            "oldObject": None,
            "dryRun": False,
        },
    }


@contextmanager
def webhook(directory: Path) -> Iterator[Client]:
    """Run `corepin webhook` until the block ends; raise DemoFailed if it does not drain and exit cleanly."""
    names = ("--dns", "localhost", "--ip", "127.0.0.1")
    corepin("certs", "issue", "--dir", str(directory), *names, output=subprocess.DEVNULL)
    log = directory / "webhook.log"
    command = [
        *(COREPIN, "webhook", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"),
        *("--tls-cert", str(directory / "tls.crt"), "--tls-key", str(directory / "tls.key")),
    ]
    with log.open("wb") as sink, subprocess.Popen(command, stderr=sink, stdout=sink) as process:
        try:
            address = _address(process, log)
            trusted = ssl.create_default_context(cafile=str(directory / "ca.crt"))
            url = f"https://{address}"
            with httpx.Client(base_url=url, verify=trusted, trust_env=False, timeout=ANSWER_SECONDS) as http:
                yield Client(http)
        finally:
            process.terminate()
    if process.returncode != 0:
        raise DemoFailed(f"the webhook ended with {process.returncode}:\n{log.read_text()}")


def corepin(*arguments: str, output: int | None = None) -> None:
    """Run the command, its output on ours by default; raise DemoFailed with its error message."""
    ended = subprocess.run(
        [COREPIN, *arguments], stdout=output, stderr=subprocess.PIPE, text=True, check=False
    )
    if ended.returncode != 0:
        raise DemoFailed(ended.stderr.strip())


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the address of the webhook, which chose a free port and logged it."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        *whole, _ = log.read_text().split("\n")  # the last line can be incomplete
        for entry in map(json.loads, whole):
            if entry.get("event") == "serving":
                return str(entry["reviews"])
        time.sleep(0.02)
    raise DemoFailed(f"the webhook did not start:\n{log.read_text()}")
