"""The agent on its node as manifests/ install it."""
