"""Starts of containers with devices on a real kubelet."""
