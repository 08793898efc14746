"""A read-only web page of all nodes with the owners of their CPUs; it reads from the API server only."""
