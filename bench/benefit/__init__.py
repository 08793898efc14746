"""What an application gains by a CPU of its own."""
