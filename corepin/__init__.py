"""The `corepin` command: argparse, one module per verb, nothing that decides."""
