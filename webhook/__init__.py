"""The admission webhook: reads reviews, answers patches, refusals and warnings. It never allocates a CPU.

`rules` decides, purely; `review`, `server` and `config` carry it out.
"""
