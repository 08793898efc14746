"""Tests of the log lines."""
