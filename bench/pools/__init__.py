"""Cost of pods with budgets: `python -m bench.pools`."""
