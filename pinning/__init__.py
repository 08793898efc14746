"""The domain of corepin: who may run on which CPU. Pure values and functions, standard library only.

No I/O, no clock, no globals. The webhook and the agent share this package and nothing else.
"""
