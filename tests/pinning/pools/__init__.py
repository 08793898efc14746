"""Tests of pods with a budget."""
