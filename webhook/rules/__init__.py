"""Admission rules for pods, workloads and virtual machines, and additions to new pods. Pure: no I/O, no clock."""
