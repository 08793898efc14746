"""Tests of `webhook.rules`."""
