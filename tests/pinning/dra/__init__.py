"""ResourceClaims and devices."""
