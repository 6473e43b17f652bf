"""The command `tensorgraft`."""

from tensorgraft.cli.app import main

__all__ = ["main"]
