"""The verbs that run until they are told to stop: `agent`, `webhook`, `certs`."""
