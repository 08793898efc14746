"""The agent on a real node: kube-apiserver, scheduler, kubelet and containerd, all of this machine and in one folder."""
