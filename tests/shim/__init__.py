"""The command `cmk` inside of containers: built, and run against an agent that says what a test wants."""
