"""One program made of the traces at several sizes, and its functions."""
