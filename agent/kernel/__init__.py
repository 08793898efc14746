"""Access to cgroups v1 and v2, sysfs, procfs, inotify and task affinities.

The caller chooses the CPUs.
"""
