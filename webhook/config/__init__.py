"""Operators' configuration files, node shapes, and their live reload. Independent of reviews and rules."""
