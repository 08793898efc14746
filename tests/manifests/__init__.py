"""Rendered manifests, and their effect on a real kube-apiserver."""
