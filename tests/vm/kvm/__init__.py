"""Machines of real KVM; all other tests of virtual machines run under TCG."""
