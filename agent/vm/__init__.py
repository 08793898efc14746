"""The threads of virtual machines: their roles and affinities.

No VMM is queried: its monitor accepts one client, which is not this agent.
"""
