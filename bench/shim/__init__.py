"""Start-up cost of `cmk isolate`."""
