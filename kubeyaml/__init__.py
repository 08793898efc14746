"""YAML as kubectl reads and writes it, for all programs. Documents are interpreted by the callers."""
