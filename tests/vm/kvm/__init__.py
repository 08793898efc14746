"""Tests with real KVM; all other tests of virtual machines use TCG."""
