"""The webhook's process: listener, TLS, health, and loading of files. `webhook.review` computes the answers."""
