"""One review: HTTP edge, decision with its cache, response, log line. The rules are in `webhook.rules`."""
