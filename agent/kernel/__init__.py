"""Access to cgroups v1 and v2, sysfs, procfs, inotify and task affinities.

Other packages decide which CPUs tasks get.
"""
