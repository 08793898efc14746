"""CPUs of new containers at their start, and the proof of it."""
