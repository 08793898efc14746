"""The picture of a machine and its owners, as text. It decides nothing and reads no files."""
