"""Functions that are copied into generated files, a file for each target. They import that framework and nothing else."""
