"""Pages as values derived from the model: every text and number is computed here, not in the browser. Pure."""
