"""A node in Intel CMK's terms: pools, the reports of `describe`, `node-report` and `reconcile`, durations. Pure."""
