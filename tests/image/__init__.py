"""The container image: built from the Dockerfile, looked into, and started as the manifests start it."""
