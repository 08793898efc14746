"""The `corepin` command: argparse, one module per verb. CPUs are chosen elsewhere."""
