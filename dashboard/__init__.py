"""A read-only web page of all nodes with the owners of their CPUs, from data in the API server only."""
