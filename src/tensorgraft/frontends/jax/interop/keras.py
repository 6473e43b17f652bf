"""A JAX function among TensorFlow's tensors: of tensors of Keras, which stand for those of a model, it is a layer."""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

import jax
import tensorflow as tf  # the backend has imported it

from tensorgraft.frontends.jax.grafted import Grafted


class AmongKeras(Grafted):
    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        keras: Any = sys.modules.get("keras")
        if keras is not None and any(isinstance(x, keras.KerasTensor) for x in jax.tree.leaves((args, kwargs))):
            return self._layer(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    @functools.cached_property
    def _layer(self) -> Any:
        name = re.sub(r"\W+", "", self.name)
        return self.xp.module(lambda arrays, *args, **kwargs: self(*args, **kwargs), {}, {}, name=name)
