"""Extensions of the standard: NumPy's functions, layers, random numbers, quantised arrays."""
