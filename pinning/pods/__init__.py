"""What a pod says: its types, quantities, resources, annotations and the claims that come of them.

Nothing here knows the CPUs of a machine.
"""
