"""Tests of `agent.kubelet`."""
