"""Functions that users call, for the arrays and models of every front end. Nothing of the front ends is built on it."""
