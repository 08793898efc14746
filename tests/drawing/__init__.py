"""Tests of `drawing`."""
