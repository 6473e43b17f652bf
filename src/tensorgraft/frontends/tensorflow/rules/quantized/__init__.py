"""Integers that stand for other numbers."""
