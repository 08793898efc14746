"""Tests of the node's report."""
