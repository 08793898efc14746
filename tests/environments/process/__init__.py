"""A machine that does not exist: sysfs as real files, containers and their cpusets in a process of its own.

It stands behind the interfaces of the agent (`agent.interfaces`), keeps running when its client is killed, and remembers every
cpuset that was ever in force. It decides nothing and knows nothing of pinning. What it cannot show: time that the
kernel takes, tasks and their own masks, NRI.
"""
