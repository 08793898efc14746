"""Partitions of cgroup v2 beside what corepin does without them, on an emulated machine."""
