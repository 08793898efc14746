"""What the agent serves: health, metrics and its state on the local socket. Nothing here changes that state."""
