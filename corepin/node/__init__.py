"""The verbs that look at a node or at a pod there: `map`, `why`, `doctor`."""
