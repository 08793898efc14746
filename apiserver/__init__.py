"""One small client of the API server: access, errors, waiting between tries, lists and watches. It knows nothing of corepin: what is read and written stays with those who ask."""
