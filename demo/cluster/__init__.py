"""`make try`: a cluster of one node on this machine with corepin installed, to be held in the hand, and gone at Ctrl-C."""
