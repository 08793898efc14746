"""The domain of corepin: CPU claims, allocation and planning. Pure values and functions, standard library only.

No I/O, no clock, no globals. The webhook and the agent import it; it imports neither of them.
"""
