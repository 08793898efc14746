"""Contents of the pages, from the model: all texts and numbers are computed here, none in the browser. Pure."""
