"""`make demo`: a real webhook over HTTPS, real reviews and their answers. Uses only corepin's command."""
