"""How long changes wait for a pass."""
