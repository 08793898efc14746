"""Virtual machines on the real node."""
