"""The kubelet: its CPU and memory policies, its configuration, and the CPUs that it gave out. Nothing here writes to it."""
