"""Real programs of a node beside the keeper of quiet CPUs."""
