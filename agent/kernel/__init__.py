"""The kernel's files: cgroups of both versions, sysfs, procfs, inotify, and where tasks may run. Which CPUs they get is decided elsewhere."""
