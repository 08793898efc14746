"""HTTP/2 as a client of gRPC over a unix socket: `frames` turns bytes into events, `connections` has the sockets."""
