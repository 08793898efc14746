"""The rotation of certificates, run with the rights of its own account."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.environments.server.apiserver import ApiServer
from tests.manifests.rendered import SYSTEM, manifest

KINDS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")


def rotate(api: ApiServer, token: str) -> subprocess.CompletedProcess[str]:
    """Run the command of the Deployment once, with a token of its account."""
    (container,) = manifest("base", "Deployment", "corepin-certs")["spec"]["template"]["spec"]["containers"]
    kubeconfig = api.write_kubeconfig("rotation", {"token": token})
    env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig), "COREPIN_NAMESPACE": SYSTEM}
    command = [str(Path(sys.executable).with_name("corepin")), *container["args"]]
    # no cluster DNS here: the address of the replicas has no listener
    here = ("--replicas=127.0.0.1:1", "--metrics-listen=off", "--once")
    return subprocess.run([*command, *here], env=env, capture_output=True, text=True, check=False)


def bundles(api: ApiServer) -> set[str]:
    """Return the distinct caBundles of all entries."""
    read = [api.get(kind, "zz-corepin") for kind in KINDS]
    return {entry["clientConfig"].get("caBundle", "") for it in read for entry in it["webhooks"]}


def issued(api: ApiServer) -> dict[str, bytes]:
    """Return the content of the Secret."""
    read = api.kubectl("-n", SYSTEM, "get", "secret", "corepin-webhook-tls", "-o", "json").stdout
    return {key: base64.b64decode(text) for key, text in json.loads(read).get("data", {}).items()}
