"""Clusters: corepin registered with an API server, or installed on a node with real servers."""
