"""Many nodes on one machine: the real agent of each on a simulated machine, against a real kube-apiserver.

What costs more with every node that a cluster has is seen here and nowhere else.
"""
