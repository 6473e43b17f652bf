"""Optimizers and gradient scalers inside compiled functions."""
