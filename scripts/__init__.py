"""Python scripts of the Makefile's targets; not part of the product."""
