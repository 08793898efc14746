"""Tests of `corepin.run`."""
