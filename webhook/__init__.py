"""The admission webhook: answers reviews with patches, refusals and warnings. It never allocates a CPU.

`rules` has the decisions, as pure functions; `review`, `server` and `config` do the I/O.
"""
