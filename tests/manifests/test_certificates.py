"""The certificates' rotation with the manifests' rights: what it writes, and what it cannot change."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography import x509

from tests.manifests.installed import ADMISSION, JSON_PATCH, Installed
from tests.manifests.rendered import SYSTEM
from tests.manifests.requests import assert_refused
from tests.manifests.rotated import bundles, issued, rotate

pytestmark = pytest.mark.server

SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/corepin-webhook-tls"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


def test_rotation_works_with_the_rights_that_it_has(installed: Installed) -> None:
    """The rotation fills the empty Secret, publishes its CA in every entry and creates events."""
    installed.admin.send("DELETE", SECRET)
    for name in ("certs.yaml", "registration.yaml"):  # an empty Secret, as after the first installation
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
    """The rotation is the field manager of caBundle, so that no other client's apply removes it."""
    assert rotate(installed.api, installed.rotation.token).returncode == 0
    shown = ("get", "mutatingwebhookconfiguration", "zz-corepin", "-o", "json", "--show-managed-fields")
    managers = json.loads(installed.api.kubectl(*shown).stdout)["metadata"]["managedFields"]
    owned = {it["manager"] for it in managers if "f:caBundle" in json.dumps(it["fieldsV1"])}
    assert owned == {"corepin-certs"}


def test_applying_the_manifests_again_keeps_certificates(installed: Installed) -> None:
    """Applying the manifests again keeps the Secret's data and every caBundle."""
    assert rotate(installed.api, installed.rotation.token).returncode == 0
    data, published = issued(installed.api), bundles(installed.api)
    installed.api.kubectl("apply", "--server-side", "-k", "manifests/base")
    assert issued(installed.api) == data
    assert bundles(installed.api) == published
    assert "" not in published


def bundle(installed: Installed) -> str:
    """Return a base64 CA bundle that the API server accepts."""
    return base64.b64encode(installed.api.ca_file.read_bytes()).decode()


@pytest.mark.parametrize("kind", KINDS)
def test_the_rotation_replaces_every_ca_bundle(kind: str, installed: Installed) -> None:
    """The rotation's patch replaces every caBundle, locked to a resourceVersion."""
    path = f"{ADMISSION}/{kind}/zz-corepin"
    read = installed.rotation.send("GET", path).json()
    locked = {
        "op": "replace",
        "path": "/metadata/resourceVersion",
        "value": read["metadata"]["resourceVersion"],
    }
    value = bundle(installed)
    operations = [
        {"op": "add", "path": f"/webhooks/{entry}/clientConfig/caBundle", "value": value}
        for entry in range(len(read["webhooks"]))
    ]
    changed = installed.rotation.patch(path, [locked, *operations], JSON_PATCH)
    assert changed.is_success, changed.text
    assert installed.rotation.patch(path, [locked, operations[0]], JSON_PATCH).status_code == 409
    # an upgrade of the manifests keeps the bundles
    installed.api.kubectl("apply", "--server-side", "-f", "manifests/base/registration.yaml")
    after = installed.rotation.send("GET", path).json()
    assert {entry["clientConfig"]["caBundle"] for entry in after["webhooks"]} == {value}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"},
        {"op": "replace", "path": "/webhooks/0/rules/0/resources", "value": ["*"]},
        {"op": "replace", "path": "/webhooks/0/clientConfig", "value": {"url": "https://evil.example/"}},
        {"op": "replace", "path": "/webhooks/0/clientConfig/service/namespace", "value": "demo"},
        {"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": "/other"},
        {"op": "remove", "path": "/webhooks/0/namespaceSelector"},
        {"op": "remove", "path": "/webhooks/0/matchConditions"},
        {"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 30},
        {"op": "remove", "path": "/webhooks/0"},
        {"op": "copy", "path": "/webhooks/-", "from": "/webhooks/0"},
        {"op": "add", "path": "/metadata/labels/mine", "value": "1"},
        {"op": "add", "path": "/metadata/annotations", "value": {"cert-manager.io/inject-ca-from": "a/b"}},
        {"op": "add", "path": "/metadata/finalizers", "value": ["a.example/b"]},
    ],
    ids=lambda operation: f"{operation['op']} {operation['path']}",
)
def test_the_rotation_changes_nothing_else(
    operation: dict[str, Any], kind: str, installed: Installed
) -> None:
    """With a stolen token of the rotation no webhook's URL, rules or other fields can be changed."""
    operations = [operation]
    if operation["op"] == "copy":  # the API server itself refuses entries with equal names
        operations.append({"op": "replace", "path": "/webhooks/1/name", "value": "x.corepin.io"})
        operations[0] = {**operation, "path": "/webhooks/1"}
    answer = installed.rotation.patch(f"{ADMISSION}/{kind}/zz-corepin", operations, JSON_PATCH)
    assert_refused(answer, "corepin-certs", "only caBundle of a webhook configuration may change")


def test_the_rotation_changes_no_other_policy_of_mutation(installed: Installed) -> None:
    """The reinvocationPolicy of mutating webhooks cannot be changed either."""
    operation = {"op": "replace", "path": "/webhooks/0/reinvocationPolicy", "value": "Never"}
    answer = installed.rotation.patch(f"{ADMISSION}/{KINDS[0]}/zz-corepin", [operation], JSON_PATCH)
    assert_refused(answer, "corepin-certs", "only caBundle of a webhook configuration may change")
