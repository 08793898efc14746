"""Scripts behind `make`, besides the programs."""
