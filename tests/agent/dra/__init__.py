"""Tests of the driver of ResourceClaims, without a kubelet."""
