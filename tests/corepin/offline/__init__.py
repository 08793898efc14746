"""Tests of `corepin.offline`."""
