"""Rules of the operations that layers of networks compute."""
