"""Small client for the Kubernetes API server: access, errors, backoff, lists and watches of any objects."""
