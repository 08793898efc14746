"""Tests of pinning/guests."""
