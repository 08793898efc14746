"""What the pages of docs/, the README and the examples say is true."""
