"""A cluster of one node inside the emulated SMT machine: every server is real, and corepin runs from its manifests."""
