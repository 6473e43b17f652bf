"""Arrays over the devices of a mesh, those that are there and those that are not."""
