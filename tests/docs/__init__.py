"""Statements of the pages of docs/, the README and the examples are true."""
