"""Arrays over the devices of a mesh, real or simulated."""
