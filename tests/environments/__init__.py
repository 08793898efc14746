"""What tests of several folders start or play, one layer in each folder; what one folder alone uses lies beside its tests.

`server` builds and starts etcd, kube-apiserver and the rest of a control plane. `process` runs one program of corepin,
the agent on a machine that does not exist. `node` is a container runtime, a kubelet and the agent on this machine.
`vm` makes virtual machines of QEMU as KubeVirt and Kata make them. `cluster` installs corepin on servers and nodes.
`guest` boots an emulated machine, and runs a node or a cluster in it.
"""
