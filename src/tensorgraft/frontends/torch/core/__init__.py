"""The base of the front end: devices, tensors, state, operators and their schemas."""
