"""The table of rules, a file for each area."""

from tensorgraft.exporting.onnx.rules import control_flow, elementwise, indexing, neural, products, reductions, shapes

__all__ = ["control_flow", "elementwise", "indexing", "neural", "products", "reductions", "shapes"]
