"""Tests of `corepin.node`."""
