"""The part of compiled functions that every front end shares: calls, inputs of programs, captured objects, guards,
messages."""
