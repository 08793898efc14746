"""An emulated machine with SMT that runs a node or a cluster: `guest` boots it, the others run inside."""
