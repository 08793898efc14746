"""The webhook's process: listener, TLS, status, and loading of files. Answers are made in `webhook.review`."""
