"""Tests of virtual machines that are moved as a whole."""
