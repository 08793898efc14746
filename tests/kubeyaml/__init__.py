"""Tests of reading and writing YAML."""
