"""Delays before a pass, by which the agent coalesces several changes into one pass."""
