"""Commands under `cmk isolate`, and containers that use the shared set beside their own CPUs, on the SMT machine."""
