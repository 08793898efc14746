"""Tests of the client of the API server."""
