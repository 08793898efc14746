"""Contents of the pages, computed from the model; the browser adds only labels. Pure."""
