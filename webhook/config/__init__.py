"""Operators' files, node shapes, and their reload. Independent of reviews and rules."""
