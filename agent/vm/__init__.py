"""The threads of virtual machines: who they are, and where they may run.

Nothing here asks a VMM: its monitor has one client, which is not this agent.
"""
