"""Assumptions of a trace, the guards that check them, and reasons to trace again."""
