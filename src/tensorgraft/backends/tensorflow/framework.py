"""Import of TensorFlow without messages: its C++ libraries write to the standard error while they are loaded, before
they read TF_CPP_MIN_LOG_LEVEL. If the user has not set that, it is 3 (fatal errors only)."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from tensorgraft.importing import load_triton

_SEVERITIES = b"IWE"
_MESSAGE = re.compile(rb"(WARNING: All log messages before absl|[IWE](?=\d{4} ))")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress log messages below TF_CPP_MIN_LOG_LEVEL; other output to the standard error is written at the end."""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # "1" is what JAX sets if the variable is unset
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    level = os.environ["TF_CPP_MIN_LOG_LEVEL"]
    if not level.isdigit() or int(level) == 0:
        yield
        return
    sys.stderr.flush()
    saved_stream = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved_stream, 2)
            os.close(saved_stream)
            file.seek(0)
            for line in file:
                match = _MESSAGE.match(line)
                severity = _SEVERITIES.find(match[1]) if match else len(_SEVERITIES)
                if severity >= int(level):
                    os.write(2, line)


# TensorFlow allocates all of a GPU's memory by default, but PyTorch and JAX may be in the same process.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
if "torch" in sys.modules:
    load_triton()
with quiet():
    import tensorflow as tf

raw = tf.raw_ops
EagerTensor = tf.__internal__.EagerTensor

__all__ = ["EagerTensor", "quiet", "raw", "tf"]
