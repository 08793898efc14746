"""A node in Intel CMK's words: its four pools, what `cmk describe`, `node-report` and `reconcile` say, its durations. Pure, and no place for what decides."""
