"""In-place updates that are true everywhere: `tg.inplace_update`, `tg.scatter_update`."""

from tensorgraft.updates.public import inplace_update, scatter_update

__all__ = ["inplace_update", "scatter_update"]
