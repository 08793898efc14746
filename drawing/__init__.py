"""Drawing of a machine and its owners as text. Pure: it reads no files."""
