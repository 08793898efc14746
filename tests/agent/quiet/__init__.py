"""Tests of the counts of what disturbs exclusive CPUs."""
