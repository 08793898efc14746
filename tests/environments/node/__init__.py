"""A container runtime, a kubelet and the agent on this machine: containerd or CRI-O alone, or a node of a cluster."""
