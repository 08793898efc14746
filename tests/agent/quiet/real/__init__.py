"""Programs of a node, as they are, beside what keeps CPUs quiet."""
