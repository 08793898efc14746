"""Small client of the API server: access, errors, backoff, lists and watches. Independent of corepin's objects."""
