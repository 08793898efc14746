"""The node agent: assigns the CPUs of one node, as the only program of corepin that accesses kernel and runtime.

Pure functions in `pinning` choose the CPUs; the packages here read the node, apply the choice and report it. The agent
never imports the webhook.
"""
