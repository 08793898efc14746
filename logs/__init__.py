"""How the three programs write their logs: as JSON lines. What is logged stays with who logs it."""
