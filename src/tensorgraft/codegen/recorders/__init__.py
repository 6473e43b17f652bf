"""Recorders of steps with their places in the program: calls, frames, names."""
