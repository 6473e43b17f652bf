"""Compiled functions, the part that every front end shares: calls, inputs of programs, what they reach, guards,
messages."""
