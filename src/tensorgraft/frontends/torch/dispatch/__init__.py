"""The call of an operator on tensors of the device: which program or kernel computes it, and on which tier."""
