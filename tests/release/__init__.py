"""Tests of `scripts.release`."""
