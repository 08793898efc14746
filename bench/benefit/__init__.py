"""Benefit of exclusive CPUs for an application."""
