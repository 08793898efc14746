"""The `corepin` command: argparse, one module for each verb, nothing that decides which CPUs anybody gets."""
