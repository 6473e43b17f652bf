"""ONNX's own backend tests, run by their runner: `python -m ecosystem.onnx [--on BACKEND ...] [--only TEXT]`."""
