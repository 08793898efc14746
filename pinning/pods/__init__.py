"""What a pod says: its types, quantities, resources, annotations and the claims that come of them. Nothing here knows a machine's CPUs."""
