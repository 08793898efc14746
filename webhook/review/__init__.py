"""Handling of one review: HTTP, decision with its cache, response, log line. The rules are in `webhook.rules`."""
