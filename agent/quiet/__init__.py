"""What disturbs exclusive CPUs, counted: interrupts, softirqs, kernel threads, other processes, run-queue waits.

Reads counters of the kernel and changes nothing. What the counters mean for an operator is in `agent/doctor/noise.py`.
"""
