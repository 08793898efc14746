"""Tests of the container image: its build, its content, and its programs under the manifests' restrictions."""
