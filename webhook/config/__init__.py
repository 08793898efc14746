"""The files that operators write, the shapes of nodes, and how changes are taken. It knows neither reviews nor rules."""
