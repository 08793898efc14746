"""Tests of the statements in docs/, the README and the examples."""
