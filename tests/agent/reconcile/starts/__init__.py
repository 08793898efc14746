"""New containers: where they start, and what is proven of that."""
