"""The real rotation with the rights of the manifests: from the empty Secret to a certificate that API servers trust."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography import x509

from tests.manifests.installed import Installed
from tests.manifests.rendered import SYSTEM
from tests.manifests.rotated import bundles, issued, rotate

pytestmark = pytest.mark.server

SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/corepin-webhook-tls"


def test_rotation_works_with_the_rights_that_it_has(installed: Installed) -> None:
    """It fills the empty Secret, publishes its CA in every entry, tells events, and finds it all again."""
    installed.admin.send("DELETE", SECRET)
    for name in ("certs.yaml", "registration.yaml"):  # the Secret empty, as on the first day
        installed.api.kubectl("apply", "--server-side", "-f", f"manifests/base/{name}")

    done = rotate(installed.api, installed.rotation.token)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "forbidden" not in done.stderr
    data = issued(installed.api)
    assert {"tls.crt", "tls.key", "ca.crt", "ca.key"} <= data.keys()
    leaf, authority = (x509.load_pem_x509_certificate(data[key]) for key in ("tls.crt", "ca.crt"))
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"corepin-webhook.{SYSTEM}.svc" in names.get_values_for_type(x509.DNSName)
    (bundle,) = bundles(installed.api)
    assert data["ca.crt"].strip() in base64.b64decode(bundle)
    events = installed.api.kubectl(
        "-n", SYSTEM, "get", "events", "-o", "jsonpath={.items[*].involvedObject.name}"
    )
    assert "corepin-webhook-tls" in events.stdout


def test_what_the_rotation_writes_is_its_own(installed: Installed) -> None:
    """The API server names it as the manager of caBundle, so that nobody else's apply takes it away."""
    assert rotate(installed.api, installed.rotation.token).returncode == 0
    shown = ("get", "mutatingwebhookconfiguration", "zz-corepin", "-o", "json", "--show-managed-fields")
    managers = json.loads(installed.api.kubectl(*shown).stdout)["metadata"]["managedFields"]
    owned = {it["manager"] for it in managers if "f:caBundle" in json.dumps(it["fieldsV1"])}
    assert owned == {"corepin-certs"}


def test_applying_the_manifests_again_keeps_certificates(installed: Installed) -> None:
    """Neither the Secret's data nor a caBundle is taken back by an upgrade."""
    assert rotate(installed.api, installed.rotation.token).returncode == 0
    data, published = issued(installed.api), bundles(installed.api)
    installed.api.kubectl("apply", "--server-side", "-k", "manifests/base")
    assert issued(installed.api) == data
    assert bundles(installed.api) == published
    assert "" not in published
