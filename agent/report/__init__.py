"""Reporters: they write the node's state to pods, the Node, Events and other API objects, metrics and the log."""
