"""What pods, workloads and virtual machines must be, and what they are given. Pure: no I/O, no clock."""
