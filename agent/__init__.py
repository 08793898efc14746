"""The node agent: owns the CPUs of one node, and is the only program of corepin that accesses kernel and runtime.

`pinning` decides, purely; the folders here observe, apply and report. It never imports the webhook.
"""
