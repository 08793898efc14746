"""Types of the JSON texts that the agent publishes: annotations of pods and nodes, and the state on its socket.

Different versions of corepin run at the same time, so members are only added. A reader ignores unknown members, shows
unknown words unchanged, and uses the default of a missing member. It refuses only a text of another VERSION.

A member that has its default value is left out of the text, unless the default comes from a factory other than `dict`.
AgentState writes all of its members.
"""
