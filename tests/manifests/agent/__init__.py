"""Tests of the agent with the accounts, policies and mounts of manifests/."""
