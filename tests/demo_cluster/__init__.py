"""`make try`, as a newcomer runs it: started, followed by its tour, and ended with Ctrl-C."""
