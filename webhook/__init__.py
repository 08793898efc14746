"""The admission webhook: reads reviews, answers patches, refusals and warnings. It never allocates a CPU.

Pure planners (mutate, sidecars, validate) decide; the thin edges (wire, app, server, reload) carry it out.
"""
