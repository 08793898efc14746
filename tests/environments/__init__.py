"""Environments for tests of several folders, one layer in each folder; others lie beside their tests.

`server` builds and starts etcd, kube-apiserver and the rest of a control plane. `process` runs one program of
corepin, the agent on a simulated machine. `node` is a container runtime, a kubelet and the agent on this
machine. `vm` starts virtual machines of QEMU as KubeVirt and Kata do. `cluster` installs corepin on servers
and nodes. `guest` boots an emulated machine, and runs a node or a cluster in it.
"""
