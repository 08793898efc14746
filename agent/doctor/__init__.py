"""The checks of `corepin doctor`, and the reading of the facts behind them. Read-only."""
