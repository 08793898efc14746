"""Measure what claims cost."""
