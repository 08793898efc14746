"""What pods with budgets cost: `python -m bench.pools`."""
