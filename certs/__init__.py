"""Certificates for the webhook: CA, leaves and rotation. Imports nothing else of corepin."""
