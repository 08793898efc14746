"""YAML as kubectl reads and writes it, for all programs. What a document means stays with who asked for it."""
