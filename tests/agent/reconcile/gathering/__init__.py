"""Delays that coalesce changes into one pass."""
