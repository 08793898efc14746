"""Tests of `corepin.plugin`."""
