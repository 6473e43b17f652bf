"""What compiled functions of every front end share: the places of a program, what it reads around it, explanations."""
