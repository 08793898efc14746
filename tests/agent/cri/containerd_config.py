"""The configuration of a containerd that touches nothing outside its directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.environments.node import crun
from tests.environments.vm.kata.install import handler_config

if TYPE_CHECKING:
    from pathlib import Path

# A runtime waits two seconds by default, then creates the container without the agent's CPUs. On a busy machine an agent
# may wait longer than that for a CPU; on an emulated one much longer, where this is replaced.
NRI_TIMEOUT = "10s"


def config_text(version: str, directory: Path, image: str, snapshotter: str) -> str:
    """Return the configuration for a version, with the handlers runc, crun and Kata."""
    number, plugin, own = _OF_VERSION[version]
    common = f"""version = {number}
root = "{directory}/root"
state = "{directory}/state"
[grpc]
address = "{directory}/containerd.sock"
[ttrpc]
address = "{directory}/containerd.sock.ttrpc"
"""
    filled = own.format(directory=directory, image=image, snapshotter=snapshotter, nri_timeout=NRI_TIMEOUT)
    return common + filled + handler_config(plugin) + crun.handler_config(plugin, directory / "shims/crun")


_CONFIG_1 = """
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{directory}/cni"
conf_dir = "{directory}/cni"
"""
_CONFIG_2 = """
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
snapshotter = "{snapshotter}"
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{directory}/cni"]
conf_dir = "{directory}/cni"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image}"
[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{directory}/nri/nri.sock"
plugin_path = "{directory}/nri/plugins"
plugin_config_path = "{directory}/nri/conf.d"
plugin_registration_timeout = "{nri_timeout}"
plugin_request_timeout = "{nri_timeout}"
"""
_OF_VERSION = {  # by version of containerd: format of the file, name of the CRI plugin, and content
    "1.6": (2, "io.containerd.grpc.v1.cri", _CONFIG_1),
    "2.4": (3, "io.containerd.cri.v1.runtime", _CONFIG_2),
}
