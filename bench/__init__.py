"""Benchmarks, each with a bare baseline in the same run."""
