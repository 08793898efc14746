"""Quiet CPUs, free of interrupts, workqueues and deep idle states, and noise counters of exclusive CPUs.

`agent/doctor/noise.py` explains the counters to operators.
"""
