"""Programs with which corepin's webhook and agent are compared; `python -m bench.peers` does the agent."""
