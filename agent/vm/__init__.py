"""The threads of virtual machines: their roles and affinities.

The agent does not query a VMM's monitor, because the monitor accepts only one client, such as libvirt or Kata.
"""
