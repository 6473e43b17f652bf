"""TensorFlow, imported quietly: its C++ libraries write to the standard error while they are loaded.

A user who sets TF_CPP_MIN_LOG_LEVEL, or imported TensorFlow before, has chosen what it tells.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

_OF_ABSL = re.compile(rb"(WARNING: All log messages before absl|[IWE]\d{4} )")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without log messages of C++ on the standard error; anything else written there comes out at the end."""
    if "tensorflow" in sys.modules or "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            for line in file:
                if not _OF_ABSL.match(line):
                    os.write(2, line)


# TensorFlow takes all of a GPU's memory, unless told otherwise: PyTorch and JAX may be in the same process.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
with _quiet():
    import tensorflow as tf

raw = tf.raw_ops
EagerTensor = tf.__internal__.EagerTensor

__all__ = ["EagerTensor", "raw", "tf"]
