"""Exclusive containers that also use shared CPUs."""
