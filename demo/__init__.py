"""`make demo`: a real webhook over HTTPS, real reviews, and their answers. Uses corepin only by its command."""
