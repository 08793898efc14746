"""Tests of `corepin.cmk`."""
