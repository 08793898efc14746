"""corepin's webhook, as the command runs it, registered with real API servers and used through kubectl."""
