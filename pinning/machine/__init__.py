"""The CPUs of a machine: CPU sets, topology, and the output of `lscpu`. Independent of pods."""
