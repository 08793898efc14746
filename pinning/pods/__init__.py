"""Contents of a pod: its types, quantities, resources and annotations, and the claims that follow from them.

Nothing here depends on the CPUs of a machine.
"""
