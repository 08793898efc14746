"""Every name that crosses a process boundary: resources, annotations, labels, taints and their values.

Users and other systems write and read these words; changing one breaks somebody's manifest.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

PRODUCT = "corepin"

# Extended resources. The first two are Intel CMK's; the webhook adds the others for claims that cost them.
EXCLUSIVE_CORES = "cmk.intel.com/exclusive-cores"
EXCLUSIVE_NON_ISOLCPUS_CORES = "cmk.intel.com/exclusive-non-isolcpus-cores"
ISOLATED_CORES = "corepin.io/isolated-cores"  # for `smt-policy: isolate`
WHOLE_CORES = "corepin.io/whole-cores"  # for `smt-policy: require`
NUMA_CPUS = "corepin.io/numa-cpus"  # for `numa-policy: single`, of one NUMA node
CMK_RESOURCES = (EXCLUSIVE_CORES, EXCLUSIVE_NON_ISOLCPUS_CORES)  # in CMK's order: the first one present wins
CMK_RESOURCE_PREFIX = "cmk.intel.com/"

# Annotations that users write.
CMK_MUTATE = "cmk.intel.com/mutate"
CMK_MUTATE_TRUE = frozenset({"true", "True", "1"})  # exactly these; CMK's webhook knows no others
CRANE_CPU_MANAGER = "qos.gocrane.io/cpu-manager"
CPU_MANAGER = "cpu-manager.corepin.io"
SMT_POLICY = "smt-policy.corepin.io"
NUMA_POLICY = "numa-policy.corepin.io"
NUMA_MEMORY_POD = "numa-memory.corepin.io/pod"
SHARED_CPUS = "shared-cpus.corepin.io"
SIDECAR_LIMITS_POD = "sidecar-limits.corepin.io/pod"
POD_SCOPE = "pod"
CONTAINER_SCOPE = "container."

# Annotations that corepin writes.
CMK_INJECTED = "cmk.intel.com/resources-injected"
STATUS_PREFIX = "status.corepin.io/"
STATUS_CPUS = "status.corepin.io/cpus"  # on pods
STATUS_TOPOLOGY = "status.corepin.io/topology"  # on nodes
STATUS_POOLS = "status.corepin.io/pools"  # on nodes
GUARDED = "guard.corepin.io/pod"  # its containers shall not start without a cpuset of the agent's
GUARDED_VALUE = "true"

REQUIRED_PLUGINS = "required-plugins.noderesource.dev"  # NRI's default validator reads it on pods
NRI_PLUGIN = "corepin"  # the agent's name among NRI's plugins
NRI_PLUGIN_INDEX = 10

# Environment of a container.
CMK_NUM_CORES = "CMK_NUM_CORES"
CMK_CPUS_ASSIGNED = "CMK_CPUS_ASSIGNED"  # "1,5": every CPU by itself, as `cmk isolate` writes it
CMK_CPUS_ASSIGNED_MASK = "CMK_CPUS_ASSIGNED_MASK"  # "22": upper-case hex
CMK_CPUS_SHARED = "CMK_CPUS_SHARED"
CMK_CPUS_INFRA = "CMK_CPUS_INFRA"

# Labels, node selectors and taints.
KUBEVIRT_LABEL = "kubevirt.io"
VIRT_LAUNCHER = "virt-launcher"
LAUNCHER_CONTAINER = "compute"
KUBEVIRT_SCHEDULABLE = "kubevirt.io/schedulable"  # on nodes where KubeVirt's handler runs
CPUMANAGER_LABELS = ("cpumanager", "kubevirt.io/cpumanager")  # KubeVirt up to 1.7, and from 1.8
CMK_TAINT_KEY = "cmk"
CMK_TAINT_VALUE = "true"
CMK_NODE_LABEL = "cmk.intel.com/cmk-node"
CMK_CONFIG_MAP_PREFIX = "cmk-config-"  # and the node's name
AGENT_NAMESPACE = "corepin-agent"  # where agents write their objects, unless their --namespace says otherwise
CMK_GROUP_VERSION = "intel.com/v1"  # of the reports: kind, and its plural
CMK_NODE_REPORT = ("Cmk-nodereport", "cmk-nodereports")
CMK_RECONCILE_REPORT = ("Cmk-reconcilereport", "cmk-reconcilereports")
CREATED_BY = "corepin.io/created-by"  # on the agents' namespace where the next command created it
CREATED_BY_CLUSTER_INIT = "cluster-init"
AGENT_NODE_LABEL = "corepin.io/agent"  # on nodes that `corepin cmk cluster-init` chose for an agent
CPU_GROUP_LABEL = "corepin.io/cpu-group"  # on nodes: whose key config.NAME.yaml their agents take
NOT_READY_TAINT_KEY = "corepin.io/agent-not-ready"  # nodes may be born with it; the agent takes it away
OVERCOMMIT_TAINT_KEY = "corepin.io/shared-overcommitted"
KUBELET_CONDITION = "CorepinKubeletPolicy"
OVERCOMMIT_CONDITION = "CorepinSharedOvercommitted"
PLUGIN_CONDITION = "CorepinPluginConflict"
DEGRADED_CONDITION = "CorepinDegraded"
MIRROR_POD = "kubernetes.io/config.mirror"
LIMIT_RANGER = "kubernetes.io/limit-ranger"

# KubeVirt annotations on a VirtualMachineInstance.
HOOK_SIDECARS = "hooks.kubevirt.io/hookSidecars"
EVEN_PARITY = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity"  # its presence counts, not its value

# Where the programs of one node find each other, the kubelet and the kernel, unless their flags say otherwise.
AGENT_CONFIG = "/etc/corepin/node/config.yaml"
AGENT_SOCKET = "/run/corepin/agent.sock"
KUBELET_STATE = "/var/lib/kubelet/cpu_manager_state"
NRI_SOCKET = "/var/run/nri/nri.sock"
DEBUGFS = "/sys/kernel/debug"

# What injected sidecars get that state nothing: the webhook adds it, the agent tells by it what they cost (KubeVirt's).
SIDECAR_CPU = "200m"
SIDECAR_MEMORY = "64M"

# The init container that holds a pod back until its CPUs are assigned. The folder in which it finds what the agent says
# of its pod is the one where a token would be: the API server mounts one into each container that has nothing there.
GATE_CONTAINER = "corepin-gate"
GATE_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
GATE_FILE = "cpus"
GATE_RESTART_POLICY = "COREPIN_RESTART_POLICY"  # the variable that tells it the pod's

# Where a container of a Kata pod finds what the agent says of the pod's CPUs, which its guest cannot know.
CPUS_VOLUME = "corepin-cpus"
CPUS_FOLDER = "/run/corepin"
CPUS_FILE = "cpus"
CONTAINER_VARIABLE = "COREPIN_CONTAINER"  # which one of the file's containers this is: no guest tells it

# Feature gates of ours, spelled as in KubeVirt.
GATE_SIDECAR = "Sidecar"
GATE_CPU_MANAGER = "CPUManager"


class ReserveSource(StrEnum):
    """Where the reserved CPUs of a node come from."""

    CONFIGURED = "configured"
    KUBELET = "kubelet"  # the kubelet's own reserve, from its configz
    KEPT = "kept"  # an earlier reserve, while containers hold CPUs
    DEFAULT = "default"


class CPUPolicy(StrEnum):
    """What a container asks of its CPUs (Crane's words)."""

    NONE = "none"
    EXCLUSIVE = "exclusive"
    SHARE = "share"


class SMTPolicy(StrEnum):
    """How a container's CPUs meet their siblings (Nova's words)."""

    PREFER = "prefer"
    REQUIRE = "require"
    ISOLATE = "isolate"


class NUMAPolicy(StrEnum):
    """How a container's CPUs lie on NUMA nodes."""

    PACKED = "packed"
    DISTRIBUTED = "distributed"
    SINGLE = "single"


class IOThreadsPolicy(StrEnum):
    """Which I/O threads a virtual machine has (KubeVirt's words)."""

    SHARED = "shared"
    AUTO = "auto"
    SUPPLEMENTAL_POOL = "supplementalPool"  # with CPUs of their own


class NUMAMemory(StrEnum):
    """Where the memory of a container may lie, from its birth."""

    FREE = "free"  # anywhere
    BIND = "bind"  # on the NUMA node of its CPUs, with `single`


class VMThreadsPolicy(StrEnum):
    """Where the threads of a Kata sandbox run that are no vCPUs, while a container of it holds CPUs."""

    UNION = "union"  # beside the vCPUs, on the CPUs of its containers
    SHARED = "shared"  # in the shared set, the shim among them


class SharedCPUs(StrEnum):
    """Whether an exclusive container may run on the shared set too."""

    TRUE = "true"
    FALSE = "false"


class SharedPool(StrEnum):
    """CPUs that nobody owns and a container may run on besides its own (CMK's words)."""

    SHARED = "shared"  # the cores set aside for them, else the shared set
    INFRA = "infra"  # the shared set


class PoolUse(NamedTuple):
    """That a container runs on a pool besides what it owns."""

    pool: SharedPool
    socket: int | None = None  # of SHARED: on one socket alone


class QoSClass(StrEnum):
    """Quality of service as the API server computes it."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"
