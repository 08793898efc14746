"""Virtual machines that are moved as a whole (Kata)."""
