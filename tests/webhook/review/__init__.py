"""Tests of `webhook.review`."""
