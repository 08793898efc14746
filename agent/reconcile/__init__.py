"""Reconcile passes: observe, plan, checkpoint, apply, verify.

Kernel, runtime and API server are behind `agent.interfaces`.
"""
