"""Certificates of the webhook: CA, server certificates and their rotation. Imports nothing else of corepin."""
