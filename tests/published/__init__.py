"""The types of what agents publish."""
