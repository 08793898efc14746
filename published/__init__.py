"""The types of what an agent publishes: one module for each kind of text, and `codec.py` that writes and reads them.

Versions of corepin run beside each other, so members are only added: a reader passes over what it does not know, shows
words that it does not know, and takes a default for what is missing. It refuses a text of another VERSION alone.
A member without a value is left out of the text, unless its default comes from a factory.
"""
