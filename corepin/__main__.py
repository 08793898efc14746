"""Entry point of `python -m corepin`, for a checkout whose packages are not installed."""

from __future__ import annotations

import sys

from corepin.cli import main

if __name__ == "__main__":
    sys.exit(main())
