"""Partitions of cgroup v2 compared with corepin without them, on an emulated machine."""
