"""What the agent writes to the API server: pods, node, events, CMK's ConfigMap and the gauges of load. No module here assigns CPUs."""
