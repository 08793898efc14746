"""The real rotation with the rights of the manifests: from the empty Secret to a certificate that API servers trust."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from tests.manifests.installed import ADMISSION, Installed
from tests.manifests.rendered import SYSTEM, one

pytestmark = pytest.mark.server

SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/corepin-webhook-tls"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


def rotate(installed: Installed) -> subprocess.CompletedProcess[str]:
    """Run the command of the Deployment once, with the account's own token."""
    (container,) = one("base", "Deployment", "corepin-certs")["spec"]["template"]["spec"]["containers"]
    kubeconfig = installed.api.write_kubeconfig("rotation", {"token": installed.rotation.token})
    env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig), "COREPIN_NAMESPACE": SYSTEM}
    command = [str(Path(sys.executable).with_name("corepin")), *container["args"]]
    # no cluster DNS here: the replicas are looked for where nobody listens
    here = ("--replicas=127.0.0.1:1", "--metrics-listen=off", "--once")
    return subprocess.run([*command, *here], env=env, capture_output=True, text=True, check=False)


def bundles(installed: Installed) -> set[str]:
    """Return the distinct caBundles of all entries."""
    read = [installed.admin.send("GET", f"{ADMISSION}/{kind}/zz-corepin").json() for kind in KINDS]
    return {entry["clientConfig"].get("caBundle", "") for it in read for entry in it["webhooks"]}


def test_rotation_works_with_the_rights_that_it_has(installed: Installed) -> None:
    """It fills the empty Secret, publishes its CA in every entry, tells events, and finds it all again."""
    installed.admin.send("DELETE", SECRET)
    for name in ("certs.yaml", "registration.yaml"):  # the Secret empty, as on the first day
        installed.api.kubectl("apply", "--server-side", "-f", f"manifests/base/{name}")

    done = rotate(installed)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "forbidden" not in done.stderr
    data = {
        key: base64.b64decode(text)
        for key, text in installed.admin.send("GET", SECRET).json()["data"].items()
    }
    assert {"tls.crt", "tls.key", "ca.crt", "ca.key"} <= data.keys()
    leaf, authority = (x509.load_pem_x509_certificate(data[key]) for key in ("tls.crt", "ca.crt"))
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"corepin-webhook.{SYSTEM}.svc" in names.get_values_for_type(x509.DNSName)
    (bundle,) = bundles(installed)
    assert data["ca.crt"].strip() in base64.b64decode(bundle)
    events = installed.api.kubectl(
        "-n", SYSTEM, "get", "events", "-o", "jsonpath={.items[*].involvedObject.name}"
    )
    assert "corepin-webhook-tls" in events.stdout


def test_applying_the_manifests_again_keeps_certificates(installed: Installed) -> None:
    """Neither the Secret's data nor a caBundle is taken back by an upgrade."""
    assert rotate(installed).returncode == 0
    data, published = installed.admin.send("GET", SECRET).json()["data"], bundles(installed)
    installed.api.kubectl("apply", "--server-side", "-k", "manifests/base")
    assert installed.admin.send("GET", SECRET).json()["data"] == data
    assert bundles(installed) == published
    assert "" not in published
