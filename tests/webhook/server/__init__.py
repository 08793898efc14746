"""Tests of `webhook.server`."""
