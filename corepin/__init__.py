"""The `corepin` command: argparse, one module per verb. `pinning` chooses the CPUs."""
