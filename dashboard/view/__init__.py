"""What the pages show, as values made of the model: every word and number is chosen here, not in the browser. Pure."""
