"""Tests of corepin; the folders mirror the packages."""
