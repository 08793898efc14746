"""Tests of the certificates."""
