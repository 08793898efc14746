"""Commands under `cmk isolate`, and containers that reach the shared set beside their own CPUs, on the SMT machine."""
