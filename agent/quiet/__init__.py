"""Counters of noise on exclusive CPUs: interrupts, softirqs, kernel threads, other processes, run-queue waits.

Read-only. `agent/doctor/noise.py` explains them to operators.
"""
