"""Cost of ResourceClaims."""
