"""A page that shows which containers own which CPUs, of all nodes, read-only; it asks the API server and nobody else."""
