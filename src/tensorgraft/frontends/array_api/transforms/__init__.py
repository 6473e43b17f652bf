"""Functions of arrays: compiled, differentiated, controlled."""
