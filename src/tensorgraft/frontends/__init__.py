"""The frameworks that programs are written for. A front end is not loaded where its framework lacks a name that it needs."""

from tensorgraft import private

private.watch()
