"""Names that cross a process boundary: resources, annotations, labels, taints and their values.

Users and other systems read and write them, so a change breaks existing manifests.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

PRODUCT = "corepin"

# Extended resources. The first two are Intel CMK's; the webhook adds the others to containers with claims.
EXCLUSIVE_CORES = "cmk.intel.com/exclusive-cores"
EXCLUSIVE_NON_ISOLCPUS_CORES = "cmk.intel.com/exclusive-non-isolcpus-cores"
ISOLATED_CORES = "corepin.io/isolated-cores"  # counts cores for `smt-policy: isolate`
WHOLE_CORES = "corepin.io/whole-cores"  # counts cores for `smt-policy: require`
NUMA_CPUS = "corepin.io/numa-cpus"  # counts CPUs of one NUMA node for `numa-policy: single`
# Prefix of resources that count the CPUs near devices for `device-policy: require`; the name of the devices' resource
# follows.
NEAR_CPUS = "near.corepin.io/"
# In CMK's order: of two resources that a container requests only the first one has an effect.
CMK_RESOURCES = (EXCLUSIVE_CORES, EXCLUSIVE_NON_ISOLCPUS_CORES)

# Annotations that users write.
CMK_MUTATE = "cmk.intel.com/mutate"
CMK_MUTATE_TRUE = frozenset({"true", "True", "1"})  # the values that CMK's webhook accepts
CRANE_CPU_MANAGER = "qos.gocrane.io/cpu-manager"
CPU_MANAGER = "cpu-manager.corepin.io"
SMT_POLICY = "smt-policy.corepin.io"
NUMA_POLICY = "numa-policy.corepin.io"
NUMA_MEMORY = "numa-memory.corepin.io"
NUMA_MEMORY_POD = f"{NUMA_MEMORY}/pod"
SHARED_CPUS = "shared-cpus.corepin.io"
CORE_TYPE = "core-type.corepin.io"
DEVICE_POLICY = "device-policy.corepin.io"
QUOTA_POLICY = "quota-policy.corepin.io"
NOISE_POLICY = "noise-policy.corepin.io"
IRQ_POLICY = "irq-policy.corepin.io"
SIDECAR_LIMITS = "sidecar-limits.corepin.io"
SIDECAR_LIMITS_POD = f"{SIDECAR_LIMITS}/pod"
POD_SCOPE = "pod"
CONTAINER_SCOPE = "container."

# CRI-O's annotations, followed under other runtimes too; also with "/CONTAINER" appended.
CRIO_CPU_QUOTA = "cpu-quota.crio.io"
CRIO_INTERRUPTS = "irq-load-balancing.crio.io"
CRIO_FOLLOWED = frozenset({CRIO_CPU_QUOTA, CRIO_INTERRUPTS})
CRIO_UNFOLLOWED = ("cpu-load-balancing.crio.io", "cpu-freq-governor.crio.io", "cpu-c-states.crio.io")
CRIO_DISABLE = "disable"

# Annotation that users write and containerd reads: "true" selects its handler `untrusted`, without a runtime class.
UNTRUSTED_WORKLOAD = "io.kubernetes.cri.untrusted-workload"
UNTRUSTED = "true"

# Annotations that only corepin writes.
CMK_INJECTED = "cmk.intel.com/resources-injected"
STATUS_CPUS = "status.corepin.io/cpus"  # on pods
STATUS_TOPOLOGY = "status.corepin.io/topology"  # on nodes
STATUS_POOLS = "status.corepin.io/pools"  # on nodes
GUARDED = "guard.corepin.io/pod"  # on pods whose containers must not start without a cpuset set by the agent
GUARDED_VALUE = "true"
# A pod's containers are held back until the agent knows the pod if it has one of these annotations.
ASKING_MARKS = frozenset({CMK_INJECTED, CMK_MUTATE, GUARDED})
# On pods: names, joined by commas, of the containers whose CPU limits a LimitRange filled in.
FILLED_IN = "limit-ranger.corepin.io/containers"
# On pods: number of CPUs of the budget with which the pod was created, "none" for pod-level CPU that is not a budget.
# An API server may drop the pod-level CPU after mutation.
POD_BUDGET = "pod-budget.corepin.io/cpus"

REQUIRED_PLUGINS = "required-plugins.noderesource.dev"  # annotation of pods, read by NRI's default validator
NRI_PLUGIN = "corepin"  # the agent's name among NRI's plugins
NRI_PLUGIN_INDEX = 10

# CPUs as claims of Dynamic Resource Allocation. dra-driver-cpu, KubeVirt and nri-plugins use the same names of class,
# capacity and variable.
DRA_DRIVER = "cpu.corepin.io"  # driver of corepin's ResourceClaims, and name of its DeviceClass
DRA_CPU_CLASS = "dra.cpu"  # the DeviceClass that KubeVirt and other drivers' examples name
DRA_CAPACITY = "dra.cpu/cpu"  # the only capacity of a device, in CPUs
# Prefix of a variable with the CPUs of a ResourceClaim as Linux writes lists; the claim's uid follows.
DRA_CPUSET_PREFIX = "DRA_CPUSET_"
CDI_KIND = "corepin.io/cpu"  # kind of the CDI devices that set this variable
# Prefix of the names of these CDI devices; uid of the claim and name of the request follow.
CDI_PREFIX = "claim-"

# Environment variables of a container.
CMK_NUM_CORES = "CMK_NUM_CORES"
CMK_CPUS_ASSIGNED = "CMK_CPUS_ASSIGNED"  # CPU numbers without ranges, "1,5", as `cmk isolate` writes them
CMK_CPUS_ASSIGNED_MASK = "CMK_CPUS_ASSIGNED_MASK"  # the same CPUs as an upper-case hexadecimal mask: "22"
CMK_CPUS_SHARED = "CMK_CPUS_SHARED"
CMK_CPUS_INFRA = "CMK_CPUS_INFRA"

# Labels, node selectors and taints.
KUBEVIRT_LABEL = "kubevirt.io"
VIRT_LAUNCHER = "virt-launcher"
LAUNCHER_CONTAINER = "compute"
KUBEVIRT_SCHEDULABLE = "kubevirt.io/schedulable"  # on nodes where KubeVirt's handler runs
# KubeVirt up to 1.7 uses the first label, 1.8 and later the second.
CPUMANAGER_LABELS = ("cpumanager", "kubevirt.io/cpumanager")
CMK_TAINT_KEY = "cmk"
CMK_TAINT_VALUE = "true"
CMK_NODE_LABEL = "cmk.intel.com/cmk-node"
CMK_CONFIG_MAP_PREFIX = "cmk-config-"  # prefix of a ConfigMap's name; the node's name follows
KUBE_SYSTEM = "kube-system"
AGENT_NAMESPACE = "corepin-agent"  # default namespace of the agents' objects, changed by --namespace
CMK_GROUP_VERSION = "intel.com/v1"  # API version of CMK's report kinds
CMK_NODE_REPORT = ("Cmk-nodereport", "cmk-nodereports")
CMK_RECONCILE_REPORT = ("Cmk-reconcilereport", "cmk-reconcilereports")
CREATED_BY = "corepin.io/created-by"  # label of the agents' namespace if `corepin cmk` created it
CREATED_BY_CLUSTER_INIT = "cluster-init"
AGENT_NODE_LABEL = "corepin.io/agent"  # on nodes that `corepin cmk cluster-init` chose for an agent
CPU_GROUP_LABEL = "corepin.io/cpu-group"  # label of nodes whose agents read the key config.NAME.yaml
NOT_READY_TAINT_KEY = "corepin.io/agent-not-ready"  # nodes may register with this taint; the agent removes it
OVERCOMMIT_TAINT_KEY = "corepin.io/shared-overcommitted"
KUBELET_CONDITION = "CorepinKubeletPolicy"
OVERCOMMIT_CONDITION = "CorepinSharedOvercommitted"
PLUGIN_CONDITION = "CorepinPluginConflict"
DEGRADED_CONDITION = "CorepinDegraded"
# Condition that is set only where the operator lets the agent move interrupts.
NOISE_CONDITION = "CorepinNoiseConflict"
MIRROR_POD = "kubernetes.io/config.mirror"
LIMIT_RANGER = "kubernetes.io/limit-ranger"

# KubeVirt annotations on a VirtualMachineInstance.
HOOK_SIDECARS = "hooks.kubevirt.io/hookSidecars"
# The presence of the annotation counts, not its value.
EVEN_PARITY = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity"

# Default paths and addresses by which the programs of one node reach each other, the kubelet and the kernel.
AGENT_CONFIG = "/etc/corepin/node/config.yaml"
AGENT_STATE = "/var/lib/corepin"  # folder of the checkpoint and its lock
AGENT_SOCKET = "/run/corepin/agent.sock"
CMK_SOCKET = "cmk.sock"  # name of the socket of `cmk` in the install directory of that command
KUBELET_STATE = "/var/lib/kubelet/cpu_manager_state"
NRI_SOCKET = "/var/run/nri/nri.sock"
DEBUGFS = "/sys/kernel/debug"
KUBELET_ROOT = "/var/lib/kubelet"
CDI_FOLDER = "/var/run/cdi"
IRQBALANCE = "/run/irqbalance"  # folder of irqbalance's socket

# Limits (those of KubeVirt) that the webhook adds to injected sidecars without limits. The agent recognizes sidecars by
# these amounts.
SIDECAR_CPU = "200m"
SIDECAR_MEMORY = "64M"

# The init container that holds a pod back until its CPUs are assigned. It reads the status annotation from the
# folder of the service account token: the API server mounts a token into each container that has no volume there.
GATE_CONTAINER = "corepin-gate"
GATE_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
GATE_FILE = "cpus"
GATE_RESTART_POLICY = "COREPIN_RESTART_POLICY"  # variable with the pod's restart policy

# File with the status annotation in containers of Kata pods, whose guest cannot show the node's CPUs.
CPUS_VOLUME = "corepin-cpus"
CPUS_FOLDER = "/run/corepin"
CPUS_FILE = "cpus"
# Variable with the container's name, by which a process finds its entry in that file.
CONTAINER_VARIABLE = "COREPIN_CONTAINER"

# corepin's feature gates, spelled as in KubeVirt.
GATE_SIDECAR = "Sidecar"
GATE_CPU_MANAGER = "CPUManager"


class ReserveSource(StrEnum):
    """The source of a node's reserved CPUs."""

    CONFIGURED = "configured"
    KUBELET = "kubelet"  # the kubelet's own reserved CPUs, from its configz
    KEPT = "kept"  # reserved CPUs of an earlier configuration, kept while containers hold CPUs
    DEFAULT = "default"


class CPUPolicy(StrEnum):
    """CPU policies of a container (Crane's words)."""

    NONE = "none"
    EXCLUSIVE = "exclusive"
    SHARE = "share"


class SMTPolicy(StrEnum):
    """Use of SMT siblings by a container (Nova's words)."""

    PREFER = "prefer"
    REQUIRE = "require"
    ISOLATE = "isolate"


class NUMAPolicy(StrEnum):
    """Distribution of a container's CPUs over NUMA nodes."""

    PACKED = "packed"
    DISTRIBUTED = "distributed"
    SINGLE = "single"


class CoreType(StrEnum):
    """Types of cores of a hybrid machine that a container may ask for."""

    PERFORMANCE = "performance"
    EFFICIENT = "efficient"
    ANY = "any"  # cores of one type if one type has enough, performance cores first


class QuotaPolicy(StrEnum):
    """Whether the CFS quota of an exclusive container is kept or unset."""

    KEEP = "keep"
    UNSET = "unset"


class DevicePolicy(StrEnum):
    """Whether a container's CPUs are near its devices (on their NUMA nodes)."""

    NONE = "none"
    PREFER = "prefer"  # CPUs near the devices first, others if these do not suffice
    REQUIRE = "require"  # only CPUs near the devices, some near each device


class NoisePolicy(StrEnum):
    """Whether interrupts are kept off the CPUs of an exclusive container."""

    NONE = "none"
    QUIET = "quiet"


class IrqWord(StrEnum):
    """Words of `irq-policy`; every other one is a glob of interrupt names."""

    AWAY = "away"  # no interrupt stays on the container's CPUs
    DEVICES = "devices"  # interrupts of the container's devices fire on its CPUs


class QuietWord(StrEnum):
    """Settings besides interrupts that the agent changes for quiet CPUs, by their names in its state and messages."""

    WORKQUEUES = "workqueues"
    IDLE_STATES = "deep idle states"


class IOThreadsPolicy(StrEnum):
    """I/O threads of a virtual machine (KubeVirt's words)."""

    SHARED = "shared"
    AUTO = "auto"
    SUPPLEMENTAL_POOL = "supplementalPool"  # I/O threads have CPUs of their own


class KubeletPolicy(StrEnum):
    """The kubelet's CPU or memory manager policy, by the names in its state files."""

    NONE = "none"
    STATIC = "static"
    UNKNOWN = "unknown"  # the state file is missing or unreadable


class NUMAMemory(StrEnum):
    """Memory placement of a container from its start."""

    FREE = "free"  # its memory may lie on any NUMA node
    BIND = "bind"  # its memory lies on the NUMA node of its CPUs, with `numa-policy: single`


class VMThreadsPolicy(StrEnum):
    """CPUs of a Kata sandbox's threads other than vCPUs, while one of its containers owns CPUs."""

    UNION = "union"  # these threads run on the CPUs of the containers, as the vCPUs do
    SHARED = "shared"  # these threads, the shim too, run on the shared set


class NoiseKind(StrEnum):
    """What disturbs a container's CPUs; the first kind above the operator's limit per second is reported."""

    INTERRUPTS = "interrupts"  # interrupts of devices
    OTHER_SLICES = "otherSlices"  # timeslices of other threads on its CPUs
    WAIT = "waitMilliseconds"  # time that its threads wait on run queues
    SWITCHES = "involuntarySwitches"  # involuntary context switches of its threads
    SOFTIRQS = "softirqs"


class Switch(StrEnum):
    """The values of an annotation that is either set or not."""

    TRUE = "true"
    FALSE = "false"


class SharedPool(StrEnum):
    """CPUs without an owner that a container may use besides its own (CMK's words)."""

    SHARED = "shared"  # the cores set aside for CMK's pool `shared`; if there are none, the shared set
    INFRA = "infra"  # the shared set


class PoolUse(NamedTuple):
    """The use of a pool by a container, in addition to the CPUs it owns."""

    pool: SharedPool
    socket: int | None = None  # only for the pool `shared`: the socket of its cores; None: all sockets


class QoSClass(StrEnum):
    """Quality of service as the API server computes it."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


# Families of policy annotations and their values (None: a text, see `pinning.pods.irq_policy`); each key is FAMILY/pod
# or FAMILY/container.NAME. Refusals are listed in this order. `make chart` writes the match conditions of
# manifests/base/registration.yaml from it: the API server does not call the webhook for a pod that has only annotations
# of families that are missing there.
FAMILIES: Final[Mapping[str, type[StrEnum] | None]] = {
    CPU_MANAGER: CPUPolicy,
    SIDECAR_LIMITS: Switch,
    SMT_POLICY: SMTPolicy,
    NUMA_POLICY: NUMAPolicy,
    NUMA_MEMORY: NUMAMemory,
    SHARED_CPUS: Switch,
    CORE_TYPE: CoreType,
    QUOTA_POLICY: QuotaPolicy,
    DEVICE_POLICY: DevicePolicy,
    NOISE_POLICY: NoisePolicy,
    IRQ_POLICY: None,
}
SINGLE_KEYS: Final[Mapping[str, str]] = {  # annotation families that have a single key
    SIDECAR_LIMITS: SIDECAR_LIMITS_POD,
    NUMA_MEMORY: NUMA_MEMORY_POD,
}
