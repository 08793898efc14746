"""Certificates: a CA and leaves for the webhook. Imports nothing else of corepin."""
