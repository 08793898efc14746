"""The process: its listener, TLS, status, and the loading of files into service. What is answered is `webhook.review`."""
