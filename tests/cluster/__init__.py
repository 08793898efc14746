"""A cluster of one node, every server real, on which corepin is installed as an operator does: `kubectl apply -k`."""
