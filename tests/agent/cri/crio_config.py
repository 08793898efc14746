"""The configuration of a CRI-O that touches nothing outside its directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.agent.cri.containerd_config import NRI_TIMEOUT

if TYPE_CHECKING:
    from pathlib import Path


def config_text(
    directory: Path,
    image: str,
    driver: str,
    runtime: Path,
    pinns: Path | None,
    *,
    has_events: bool,
    options: str = "",
) -> str:
    """Return the configuration for one OCI runtime; `options` are more lines of [crio.runtime]."""
    return _CONFIG.format(
        directory=directory,
        image=image,
        driver=driver,
        runtime=runtime,
        pinns=pinns,
        events=str(has_events).lower(),
        options=options,
        nri_timeout=NRI_TIMEOUT,
    )


_CONFIG = """
[crio]
root = "{directory}/root"
runroot = "{directory}/run"
log_dir = "{directory}/pod-logs"
version_file = "{directory}/version"
version_file_persist = "{directory}/version-persist"
clean_shutdown_file = "{directory}/clean"
storage_driver = "{driver}"
internal_wipe = false
[crio.api]
listen = "{directory}/crio.sock"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
apparmor_profile = "unconfined"
seccomp_profile = ""
pinns_path = "{pinns}"
hooks_dir = []
container_exits_dir = "{directory}/exits"
container_attach_socket_dir = "{directory}/attach"
namespaces_dir = "{directory}/namespaces"
irqbalance_config_restore_file = "disable"
enable_pod_events = {events}
drop_infra_ctr = true
disable_hostport_mapping = true
log_level = "warn"
{options}
[crio.runtime.runtimes.runc]
runtime_path = "{runtime}"
runtime_type = "oci"
runtime_root = "{directory}/runc"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{image}"
pause_command = "/bin/sleep"
signature_policy = "{directory}/policy.json"
[crio.network]
network_dir = "{directory}/cni"
plugin_dirs = ["{directory}/cni"]
[crio.nri]
enable_nri = true
nri_listen = "{directory}/nri/nri.sock"
nri_plugin_dir = "{directory}/nri/plugins"
nri_plugin_config_dir = "{directory}/nri/conf.d"
nri_plugin_registration_timeout = "{nri_timeout}"
nri_plugin_request_timeout = "{nri_timeout}"
"""
