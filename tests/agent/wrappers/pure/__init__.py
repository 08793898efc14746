"""Requests, claims and rate limits: pure functions, without kernel calls."""
