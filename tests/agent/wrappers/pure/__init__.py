"""What decides without touching the kernel: requests, claims, bounds."""
