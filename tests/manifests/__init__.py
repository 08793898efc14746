"""What `manifests/` renders to, and what a real kube-apiserver does with it."""
