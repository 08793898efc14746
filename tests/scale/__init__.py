"""Scale tests: many real agents, each on a simulated machine, with a real kube-apiserver.

Only these tests show costs that grow with the number of nodes.
"""
