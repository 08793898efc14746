"""Rounds of the keeper of quiet CPUs, beside a state of the node."""
