"""What everything of the front end stands on: devices, tensors, state, operators and their schemas."""
