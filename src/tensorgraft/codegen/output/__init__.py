"""The text of a file."""
