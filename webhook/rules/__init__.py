"""Admission rules for pods, workloads and virtual machines, and patches for new pods. Pure: no I/O, no clock."""
