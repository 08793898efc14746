"""The programs of the tests with their sources: a new one is one line in `SERVERS`.

Versions are written in one place only, the go.mod of each module.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Module:
    """A folder whose go.mod and go.sum pin one upstream project with its dependencies."""

    folder: Path
    path: str
    stamp: str = ""  # the package with the version variables; without it clients see v0.0.0
    tags: tuple[str, ...] = ()
    file: str = "go.mod"  # another file pins another version in the same folder

    @cached_property
    def go_mod(self) -> str:
        """Return the text of go.mod."""
        return (self.folder / self.file).read_text()

    @cached_property
    def version(self) -> str:
        """Return the pinned version without its "v", e.g. "1.37.1"."""
        found = re.search(rf"^(?:require)?\s+{re.escape(self.path)} v(\S+)", self.go_mod, re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.folder / self.file} requires no version of {self.path}")
        return found[1]

    @cached_property
    def go_version(self) -> tuple[int, ...]:
        """Return the oldest Go that builds this module, e.g. (1, 26, 0)."""
        found = re.search(r"^go (\S+)", self.go_mod, re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.folder / self.file} names no version of Go")
        return tuple(int(part) for part in found[1].split("."))

    @cached_property
    def build_flags(self) -> tuple[str, ...]:
        """Return the flags of `go build`, apart from the package and the output."""
        flags = ["-s", "-w"]
        if self.stamp:
            major, minor, _ = self.version.split(".", maxsplit=2)
            stamps = {"gitVersion": f"v{self.version}", "gitMajor": major, "gitMinor": minor}
            flags += [f"-X {self.stamp}.{name}={value}" for name, value in stamps.items()]
        file = () if self.file == "go.mod" else (f"-modfile={self.file}",)
        return ("-trimpath", f"-tags={','.join(self.tags)}", f"-ldflags={' '.join(flags)}", *file)

    @cached_property
    def digest(self) -> str:
        """Return a short hash of all inputs of the build."""
        sums = (self.folder / self.file).with_suffix(".sum")
        return _digest(self.go_mod, sums.read_text(), *self.build_flags)

    def package(self, command: str) -> str:
        """Return the Go package of the program in a folder of this module."""
        return f"{self.path}/{command}".rstrip("/")


@dataclass(frozen=True)
class OwnModule(Module):
    """A module of our own with the program in its root, so that its source is an input of the build."""

    @cached_property
    def digest(self) -> str:
        """Return a short hash of the recipe and the source."""
        sources = sorted(self.folder.glob("*.go"))
        return _digest(super().digest, *(source.read_text() for source in sources))

    def package(self, command: str) -> str:
        """Return the root package."""
        return "."


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Server:
    """One program of a module; `command` is its folder in the module, empty for the root."""

    name: str
    module: Module
    command: str = ""

    @property
    def package(self) -> str:
        """Return the Go package to build."""
        return self.module.package(self.command)

    @property
    def label(self) -> str:
        """Return the display name, e.g. "etcd 3.7.3"."""
        return f"{self.name} {self.module.version}"

    @property
    def cache_key(self) -> str:
        """Return the name of this build's folder in the cache."""
        return f"{self.name}-{self.module.version}-{self.module.digest}"


@dataclass(frozen=True)
class CProgram(Server):
    """A program in C in a folder of a Go module."""

    @property
    def sources(self) -> str:
        """Return the folder of its sources in the module."""
        return self.command


_COMPONENT_VERSION = "k8s.io/component-base/version"
KUBERNETES = {
    "1.37": Module(HERE / "kubernetes-1.37", "k8s.io/kubernetes", stamp=_COMPONENT_VERSION),
    "1.30": Module(HERE / "kubernetes-1.30", "k8s.io/kubernetes", stamp=_COMPONENT_VERSION),
}
NEWEST, OLDEST = "1.37", "1.30"

ETCD = Server("etcd", Module(HERE / "etcd", "go.etcd.io/etcd/server/v3"))
KUBECTL = Server("kubectl", KUBERNETES[NEWEST], "cmd/kubectl")
KUBE_APISERVER = {
    version: Server("kube-apiserver", module, "cmd/kube-apiserver") for version, module in KUBERNETES.items()
}

# The API server's evaluation of ValidatingAdmissionPolicies for pods, as a program.
POLICY = Server("policy", OwnModule(HERE / "kubernetes-1.37", "k8s.io/kubernetes"))

HELM = Server("helm", Module(HERE / "helm", "helm.sh/helm/v4"), "cmd/helm")
KREW = Server("krew", Module(HERE / "krew", "sigs.k8s.io/krew"), "cmd/krew")

_CONTAINERD = Module(
    HERE / "containerd", "github.com/containerd/containerd/v2", tags=("no_btrfs", "no_devmapper", "no_zfs")
)
CONTAINERD = Server("containerd", _CONTAINERD, "cmd/containerd")
CONTAINERD_SHIM = Server("containerd-shim-runc-v2", _CONTAINERD, "cmd/containerd-shim-runc-v2")
CTR = Server("ctr", _CONTAINERD, "cmd/ctr")
# conmon and runc come from the distribution.
_CRIO = Module(
    HERE / "crio",
    "github.com/cri-o/cri-o",
    tags=(
        "containers_image_ostree_stub",
        "containers_image_openpgp",
        "exclude_graphdriver_btrfs",
        "apparmor",
    ),
)
CRIO = Server("crio", _CRIO, "cmd/crio")
CRIO_IMAGES = Server("copyimg", _CRIO, "test/copyimg")
PINNS = CProgram("pinns", _CRIO, "pinns/src")
KUBELET = Server("kubelet", KUBERNETES[NEWEST], "cmd/kubelet")
KUBE_SCHEDULER = Server("kube-scheduler", KUBERNETES[NEWEST], "cmd/kube-scheduler")
KUBE_CONTROLLER_MANAGER = Server("kube-controller-manager", KUBERNETES[NEWEST], "cmd/kube-controller-manager")

# kube-scheduler with the filter NodeResourceTopologyMatch, which checks whether a pod fits into one NUMA node.
TOPOLOGY_SCHEDULER = Server(
    "topology-aware-scheduler",
    Module(HERE / "scheduler-plugins", "sigs.k8s.io/scheduler-plugins"),
    "cmd/scheduler",
)

# The runtime side of NRI. 0.8 has no validators; before 0.12 all events are sent as StateChange.
NRI_RUNTIMES = {
    version: Server(
        "nri-runtime",
        OwnModule(HERE / "nri", "github.com/containerd/nri", tags=("nri_no_wasm",), file=file),
    )
    for version, file in (("0.12", "go.mod"), ("0.11", "nri-0.11.mod"), ("0.8", "nri-0.8.mod"))
}

API_SERVERS = (
    ETCD,
    KUBE_APISERVER[NEWEST],
    KUBECTL,
    KUBE_APISERVER[OLDEST],
    POLICY,
    HELM,
    KREW,
    TOPOLOGY_SCHEDULER,
    *NRI_RUNTIMES.values(),
)
CRIO_SERVERS = (CRIO, CRIO_IMAGES, PINNS)
NODE_SERVERS = (
    *(CONTAINERD, CONTAINERD_SHIM, CTR),
    *CRIO_SERVERS,
    *(KUBELET, KUBE_SCHEDULER, KUBE_CONTROLLER_MANAGER),
)
SERVERS = API_SERVERS + NODE_SERVERS
