"""Containers that run on more than they own."""
