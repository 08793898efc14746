"""NRI, the runtime's interface for plugins: what is decided of a container becomes part of it before it starts.

`wire/` speaks the protocol and knows nothing of corepin.
"""
