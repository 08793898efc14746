"""Tests of gRPC over a unix socket."""
