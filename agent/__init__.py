"""The node agent: owns the CPUs of one node. It alone reads and writes the kernel and the container runtime.

What to do is decided in `pinning`, purely; the folders here observe, apply and report. Never imports the webhook.
"""
