"""What corepin's webhook and its agent are measured against; `python -m bench.peers` compares the agent."""
