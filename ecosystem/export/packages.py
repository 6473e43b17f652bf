"""Packages that lie beside the environment, in a folder of their own: they pin others than those that are tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("TENSORGRAFT_EXPORT_PACKAGES") or Path(sys.prefix) / "export-packages")
MODELS = ("timm", "torchvision", "flaxmodels", "jaxonmodels", "equimo", "keras-hub", "beartype", "ftfy", "wcwidth")
EXPORTERS = (
    "onnxscript", "onnx-ir", "jax2onnx", "tf2onnx", "litert-torch", "ai-edge-litert", "ai-edge-quantizer",
    "litert-converter", "litert-lm-builder", "xdsl", "fire", "ordered-set", "immutabledict", "backports.strenum",
    "sentencepiece", "termcolor", "torchao", "multipledispatch", "tabulate", "lark", "flatbuffers", "absl-py",
)  # fmt: skip


def provide() -> None:
    """Make the packages importable; the first call on a machine installs them."""
    if not FOLDER.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER)]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *MODELS, *EXPORTERS], check=True)
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
        import ecosystem.site.sitecustomize  # noqa: F401  # the schemas that torchvision lacks
