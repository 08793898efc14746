"""Checks of `corepin doctor`, and readers of the facts that they examine. Read-only."""
