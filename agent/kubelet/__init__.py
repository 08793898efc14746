"""The kubelet: its CPU and memory policies, its configuration, and the CPUs and devices that it assigned. Read-only."""
