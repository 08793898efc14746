"""Tests of `corepin.drawing`."""
