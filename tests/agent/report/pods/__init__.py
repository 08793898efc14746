"""Tests of what is written on pods."""
