"""NRI, the runtime's plugin interface: changes to a container before it is created.

`wire/` implements the protocol and knows nothing of corepin.
"""
