"""Measurements, side by side with a bare baseline in the same run."""
