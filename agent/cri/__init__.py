"""The container runtime over CRI v1. Runtimes of another kind get a package of their own."""
