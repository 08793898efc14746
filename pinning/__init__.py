"""The domain of corepin: who may run on which CPU. Pure values and functions, standard library only.

No I/O, no clock, no globals. The webhook and the agent decide with it; neither of them is known here.
"""
