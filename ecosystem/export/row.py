"""A program in a format by an exporter, as a line of `out/ecosystem/export.jsonl`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ecosystem.outcome import OUT

FILE = OUT / "export.jsonl"
FORMATS = ("stablehlo", "onnx", "saved_model", "pt2", "litert")
OURS = "tensorgraft"
# the exporters that write a format of a framework's programs
PEERS = {
    ("torch", "onnx"): "torch.onnx",
    ("torch", "pt2"): "torch.export",
    ("torch", "litert"): "litert-torch",
    ("jax", "onnx"): "jax2onnx",
    ("jax", "stablehlo"): "jax.export",
    ("tensorflow", "onnx"): "tf2onnx",
    ("tensorflow", "saved_model"): "tf.saved_model",
    ("tensorflow", "litert"): "TFLiteConverter",
}
LIMITS = {"results": 1e-5, "state": 1e-4}  # of a difference, relative to the largest entry of an array


@dataclass
class Row:
    """What an exporter wrote of a program. `open` are the sizes that the file leaves open, of those that it is asked
    for; `apart` is the largest difference of a result, `apart_open` at another batch and length."""

    program: str
    library: str
    format: str
    exporter: str
    asked: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    written: bool = False
    apart: float | None = None
    apart_open: float | None = None
    size: int = 0
    seconds: float = 0.0  # of the CPU
    reason: str = ""
    state: str = ""  # the commit of tensorgraft

    @property
    def equal(self) -> bool:
        return self.written and self.apart is not None and self.apart <= LIMITS["results"]

    @property
    def dynamic(self) -> bool:
        """True if every size that is asked for is open, and results at others are equal."""
        is_open = set(self.asked) <= set(self.open) and self.apart_open is not None
        return self.equal and is_open and (self.apart_open or 0.0) <= LIMITS["results"]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.program, self.format, self.exporter

    def line(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        verdict = "open" if self.dynamic else "ok" if self.equal else "NOT"
        apart = "" if self.apart is None else f" {self.apart:.0e}"
        title = f"{self.program} as {self.format} by {self.exporter}"
        return f"{verdict:5}{title}:{apart} {self.seconds:.0f} s {self.size} bytes {self.reason}"


def rows() -> dict[tuple[str, str, str], Row]:
    """Return the rows of earlier runs, the last of each."""
    if not FILE.exists():
        return {}
    found: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text().splitlines()]
    return {(row := Row(**values)).key: row for values in found}
