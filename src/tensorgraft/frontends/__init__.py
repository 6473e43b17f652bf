"""The frameworks that programs are written for. A front end is loaded only where its framework has the names needed."""

from tensorgraft import private

private.watch()
