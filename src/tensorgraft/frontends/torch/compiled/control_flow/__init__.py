"""Branches, loops and recurrent layers inside compiled functions."""
