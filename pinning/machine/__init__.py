"""The CPUs of a machine: sets of them, their topology, and `lscpu`. It knows nothing of pods."""
