"""The kubelet: its CPU and memory policies, its configuration, and the CPUs that it assigned. Read-only."""
