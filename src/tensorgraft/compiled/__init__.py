"""What compiled functions of every front end share: calls, inputs of programs, what they reach, guards, words."""
