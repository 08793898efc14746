"""The driver of ResourceClaims, without a kubelet."""
