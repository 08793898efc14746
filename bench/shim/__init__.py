"""What `cmk isolate` adds to the start of a command."""
