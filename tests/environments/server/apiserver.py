"""A running kube-apiserver for tests: users, kubectl, namespaces.

There is no controller manager: a deleted namespace stays, and service accounts are created by hand.
"""

import json
import ssl
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import trustme

from apiserver.access import Access
from apiserver.client import Api
from tests.environments.server.daemon import plain_environment
from tests.environments.waiting import until

ADMIN = "admin"


class KubectlFailed(subprocess.CalledProcessError):
    """kubectl failed; the message has its output."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stderr}"


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of one pair of servers."""

    etcd: Path
    kube_apiserver: Path
    kubectl: Path


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running kube-apiserver; all its files, except etcd's data, are in `directory`."""

    version: str
    url: str
    directory: Path
    binaries: Binaries
    authority: trustme.CA
    admin_token: str

    @property
    def ca_file(self) -> Path:
        """Return the CA of the serving certificate and of client certificates."""
        return self.directory / "ca.crt"

    @property
    def log_file(self) -> Path:
        """Return the log of kube-apiserver."""
        return self.directory / "kube-apiserver.log"

    @property
    def etcd_log_file(self) -> Path:
        """Return the log of etcd."""
        return self.directory / "etcd.log"

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """Return the kubeconfig of `admin` or of a user that was added."""
        path = self.directory / f"{user}.kubeconfig"
        if not path.exists():
            raise ValueError(f"the test API server has no user {user!r}; call add_user first")
        return path

    def add_user(self, name: str, group: str | None = None) -> Path:
        """Give `name`, as a member of `group`, a client certificate; return its kubeconfig."""
        # Go refuses a certificate with an empty list of names, so there is one, which has no effect.
        pair = self.authority.issue_cert("localhost", common_name=name, organization_name=group)
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        pair.cert_chain_pems[0].write_to_path(certificate)
        pair.private_key_pem.write_to_path(key)
        return self.write_kubeconfig(name, {"client-certificate": str(certificate), "client-key": str(key)})

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - named as in subprocess.run
        check: bool = True,
        user: str = ADMIN,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; a failure raises KubectlFailed unless `check` is false."""
        home = str(self.directory)
        env = plain_environment() | {"HOME": home, "KUBECONFIG": str(self.kubeconfig(user)), "KUBERC": "off"}
        command = [str(self.binaries.kubectl), *args]
        done = subprocess.run(command, input=input, env=env, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise KubectlFailed(done.returncode, command, done.stdout, done.stderr)
        return done

    def get(self, *what: str, input: str | None = None) -> Any:  # noqa: A002 - named as in subprocess.run
        """Return the output of `kubectl get -o json`, an object or a list."""
        return json.loads(self.kubectl("get", *what, "-o=json", input=input).stdout)

    def apply(self, yaml: str, *, user: str = ADMIN) -> subprocess.CompletedProcess[str]:
        """Apply YAML documents by `kubectl apply`."""
        return self.kubectl("apply", "-f", "-", input=yaml, user=user)

    def until_may_list(self, user: str, *kinds: str) -> None:
        """Wait until a user may list these kinds: the API server learns of roles and bindings by watches."""
        for kind in kinds:
            asked = ("auth", "can-i", "list", kind, "--all-namespaces", f"--as={user}")
            until(f"{user} may list {kind}", lambda: self.kubectl(*asked, check=False).returncode == 0)  # noqa: B023 - called in this turn

    def create_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """Create a namespace with its service account `default`, which pods need; return its name."""
        namespaces = "/api/v1/namespaces"
        with self.client() as client:  # most tests need a namespace, and kubectl takes ten times the CPU
            metadata = {"name": name, "labels": dict(labels or {})}
            client.post(namespaces, json={"metadata": metadata}).raise_for_status()
            account = {"metadata": {"name": "default"}}
            client.post(f"{namespaces}/{name}/serviceaccounts", json=account).raise_for_status()
        return name

    @property
    def token_file(self) -> Path:
        """Return a file with the admin's token, as programs of the cluster read theirs."""
        path = self.directory / "admin.token"
        path.write_text(self.admin_token)
        return path

    def api(self, user_agent: str = "corepin-agent") -> Api:
        """Return corepin's client with the admin's rights; the caller closes it."""
        return Api(Access(self.url, self.ca_file, self.token_file), user_agent)

    def client(self) -> httpx.Client:
        """Return an HTTP client with the admin's rights; the caller closes it."""
        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.admin_token}"},
            verify=ssl.create_default_context(cafile=str(self.ca_file)),
            timeout=60.0,  # the time that the server itself works on a request
            trust_env=False,
        )

    def write_kubeconfig(self, user: str, credentials: Mapping[str, str]) -> Path:
        """Write the kubeconfig of `user`, whose credentials are e.g. {"token": ...}, and return its path."""
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": dict(credentials)}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path = self.directory / f"{user}.kubeconfig"
        path.write_text(json.dumps(content, indent=2))
        return path
