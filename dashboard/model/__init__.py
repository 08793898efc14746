"""What is known of the cluster, as values: nodes, pods and events as agents report them. Pure; how it is shown is not here."""
