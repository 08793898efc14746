"""Types of the agent's published texts: one module for each kind, and `codec.py` to encode and decode them.

Versions of corepin run beside each other, so members are only added: a reader ignores unknown members, shows
unknown words as they are, and takes a default for a missing member. It refuses only a text of another
VERSION.

A member that has its default value is left out of the text, unless the default comes from a factory.
"""
