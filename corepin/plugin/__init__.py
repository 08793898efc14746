"""Verbs of `kubectl corepin` that replace those for this machine: `map`, `doctor`."""
