"""Functions that are copied into generated files, a file for each target. They import its framework alone."""
