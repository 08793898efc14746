"""Pods placed by a real scheduler with scheduler-plugins' filter, on what the agents publish."""
