"""The verbs that inspect a node or one of its pods: `map`, `why`, `doctor`."""
