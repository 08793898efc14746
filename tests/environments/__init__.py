"""Test environments shared by several folders of tests, one package per layer.

`server` builds and starts etcd, kube-apiserver and the rest of a control plane. `process` runs one program of
corepin, or the agent on a simulated machine. `node` is a container runtime, a kubelet and the agent on this
machine. `vm` starts virtual machines of QEMU as KubeVirt and Kata do. `cluster` installs corepin on servers
and nodes. `guest` boots an emulated machine, and runs a node or a cluster in it.
"""
