"""The verbs that look at a node: `map`, `doctor`."""
