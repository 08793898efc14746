"""Tests of the dashboard: its model, its HTTP server, and its pages in a browser."""
