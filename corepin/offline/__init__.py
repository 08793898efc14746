"""The verbs that need no cluster: `inject`, `validate`, `plan`."""
