"""The edges: watches of the API server, and the HTTP server of the page."""
