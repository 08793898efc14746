"""The dashboard: what it makes of annotations, how it serves, and what a browser shows."""
