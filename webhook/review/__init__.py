"""One review: the HTTP edge, the decision with its cache, the response and the line in the log. What is right and wrong is `webhook.rules`."""
