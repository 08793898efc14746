"""The cluster as values: nodes, pods and events as agents report them. Pure; `dashboard.view` presents them."""
