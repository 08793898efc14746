"""The verbs that run until they are stopped: `agent`, `webhook`, `certs`, `dashboard`, `gate`, `guard`."""
