"""One pass after the other: observe, plan, checkpoint, apply, verify. What touches the kernel, the runtime or the API server is behind `agent.interfaces`."""
