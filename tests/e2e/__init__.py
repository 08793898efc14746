"""End-to-end tests of the command `corepin webhook`, registered with real API servers and used through kubectl."""
