"""CPUs of the threads of virtual machines, within the CPUs of their containers. Pure."""
