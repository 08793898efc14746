"""A node in Intel CMK's words."""
