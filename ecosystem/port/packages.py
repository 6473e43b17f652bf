"""Packages of the dependency group `port` that lie beside the environment, in a folder of their own.

The released torchvision is built for CUDA, and a PyTorch without cannot import it: in the environment it would break
programs that use it where they find it. The others ask for more packages than their networks need.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(sys.prefix) / "port-packages"
BESIDE = ("timm", "torchvision", "flaxmodels", "jaxonmodels", "beartype", "ftfy", "wcwidth")


def provide() -> None:
    """Make the packages importable; the first call on a machine installs them."""
    if not FOLDER.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER)]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *BESIDE], check=True)
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
        import ecosystem.site.sitecustomize  # noqa: F401  # the schemas that torchvision lacks
