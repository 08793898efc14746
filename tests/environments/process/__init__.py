"""A simulated machine: sysfs as real files, containers and their cpusets in a process of its own.

It implements the interfaces of the agent (`agent.interfaces`), keeps running when its client is killed, and
records every cpuset that was ever in force. It makes no decisions and knows nothing of pinning. It does not
simulate: the kernel's time, tasks and their masks, NRI.
"""
