"""`make demo`: a real webhook over HTTPS, real reviews, and what came of them. Uses corepin only by its command."""
