"""JSON log lines of all programs; the events are defined where they are logged."""
