"""ONNX models as programs that `tg.source` writes down and `tg.port` compares."""
