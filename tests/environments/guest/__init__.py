"""An emulated machine with SMT, and a node or a cluster inside of it: `guest` boots, the rest runs in the machine."""
