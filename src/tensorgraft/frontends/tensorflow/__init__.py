"""TensorFlow's programs: graphs of its raw operations, as plans of hub operations.

`function_graphs` turns a `tf.function` into a `FunctionGraph` that knows nothing of TensorFlow; `planning` resolves its
nodes to rules (`rule`, `rules`); `program` runs a plan as a function of arrays and of the variables' values; `grafted`
is what users get.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from tensorgraft.hub.backend import Backend


def graft_tensorflow(program: Any, xp: Backend) -> Any:
    """Graft a function or a model of TensorFlow, or the folder of a SavedModel, onto a backend (for `tg.graft`)."""
    if isinstance(program, str | os.PathLike):
        from tensorgraft.frontends.tensorflow.saved import GraftedSignatures

        return GraftedSignatures(os.fspath(program), xp)
    if inspect.ismethod(program):
        import tensorflow as tf

        program = tf.function(program)
    from tensorgraft.frontends.tensorflow.grafted import GraftedGraph
    from tensorgraft.frontends.tensorflow.models import graft_model, is_model

    return graft_model(program, xp) if is_model(program) else GraftedGraph(program, xp)
