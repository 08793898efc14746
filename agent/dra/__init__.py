"""The driver of Dynamic Resource Allocation: the kubelet's Prepare and Unprepare, and CDI files.

The driver chooses no CPUs: a pass grants the CPUs of a claim, and Prepare waits until a saved ledger has them.
"""
