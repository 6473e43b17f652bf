"""Pickled states of optimizers name these classes here."""

from tensorgraft.quantization.api.optimizer import Adam8bitState, Moment

__all__ = ["Adam8bitState", "Moment"]
