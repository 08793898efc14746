"""The command `cmk` inside containers: built, and run against an agent with preset answers."""
