"""Pods of a real kubelet whose CPUs come over NRI."""
