"""Data model of the page: nodes, pods and events as agents report them. Pure; `dashboard.view` presents them."""
