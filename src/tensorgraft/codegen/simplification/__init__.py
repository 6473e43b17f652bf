"""Rewrite rules for recorded steps."""
