"""Moves of interrupts off quiet CPUs and back, on interrupts that behave as the kernel's."""
