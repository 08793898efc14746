"""I/O of the dashboard: watches of the API server, and the HTTP server."""
