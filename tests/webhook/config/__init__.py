"""Tests of `webhook.config`."""
