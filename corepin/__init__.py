"""The `corepin` command line, with one module per verb. The logic is in `pinning`, `agent`, `webhook` and others."""
