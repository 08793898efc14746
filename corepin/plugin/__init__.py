"""The verbs that `kubectl corepin` has in the place of those that look at this machine: `map`, `doctor`."""
