"""An operator on a tensor of the device: what comes out of it, by which program or kernel, and where."""
