"""ONNX: a recorded program as a graph of ONNX's operators."""
