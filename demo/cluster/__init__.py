"""`make try`: a cluster of one node on this machine with corepin installed, removed at Ctrl-C."""
