"""Every public class of Keras as a program of TensorFlow's: found by introspection, with arguments by rule.

A case makes a program that computes results and gradients, in training and in inference where there is a difference,
and writes whatever variables the class has. `UNTRIED` says of each class that has no case why.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

Program = Callable[..., Any]
L = keras.layers


class KerasCase(NamedTuple):
    """`make()` gives a program of these arguments; what variables it has is for its graph to say."""

    name: str
    make: Callable[[], Program]
    arguments: tuple[np.ndarray, ...]

    def __str__(self) -> str:
        return self.name


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def uniform(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(0.05, 0.95, size=shape).astype(np.float32)


def whole(high: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(0, high, size=shape).astype(np.int32)


def classes_of(namespace: str) -> dict[str, type]:
    """The public classes of a part of Keras, each under its first name."""
    module: Any = keras
    for part in namespace.split("."):
        module = getattr(module, part)
    found = {x: name for name in sorted(dir(module), reverse=True) if inspect.isclass(x := getattr(module, name))}
    return {next((n for n in (cls.__name__,) if hasattr(module, n)), name): cls for cls, name in found.items()}


def differentiated(fn: Callable[[list[Any]], Any], arguments: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """What a function gives, and the gradients of the sum of its squares by arguments and variables; without these
    where TensorFlow has none."""
    smooth = [x for x in arguments if x.dtype.is_floating]
    sources = [*smooth, *(v.value for v in variables)]
    with tf.GradientTape() as tape:
        tape.watch(smooth)
        out = [tf.convert_to_tensor(x) for x in tf.nest.flatten(fn(list(arguments))) if x is not None]
        squares = [tf.reduce_sum(tf.square(tf.cast(x, tf.float32))) for x in out if x.dtype.is_floating]
        loss = tf.add_n(squares) if squares else None
    if loss is None or not sources:
        return out
    try:
        gradients = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    except LookupError:
        return out
    return [*out, *map(tf.convert_to_tensor, gradients)]


# ---- layers ----------------------------------------------------------------------------------------------------------

# arguments of constructors that have no default, by name
_ARGUMENTS: dict[str, Any] = {
    "units": 4,
    "filters": 4,
    "kernel_size": 2,
    "pool_size": 2,
    "output_size": 2,
    "rate": 0.4,
    "stddev": 0.3,
    "factor": 0.3,
    "height_factor": 0.2,
    "width_factor": 0.2,
    "height": 5,
    "width": 6,
    "dims": (2, 1),
    "n": 3,
    "scale": 0.5,
    "target_shape": (-1, 2),
    "input_dim": 7,
    "output_dim": 3,
    "num_heads": 2,
    "key_dim": 3,
    "head_dim": 3,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "activation": "gelu",
    "axes": 1,
    "max_number": 3,
}


def _required(cls: type) -> dict[str, Any]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name: _ARGUMENTS[p.name] for p in named}


def _inputs(name: str, cls: type) -> Any:
    """The first argument of a call: by base classes, then by what the name says of dimensions."""
    bases = {base.__name__ for base in cls.__mro__}
    if "BaseImagePreprocessingLayer" in bases:
        return np.round(255 * uniform(2, 8, 8, 3))
    if "Merge" in bases:
        return [normal(2, 4), normal(2, 4, seed=1)]
    dimensions = next((int(d) for d in "123" if f"{d}D" in name), 0)
    extents = {0: (5,), 1: (8,), 2: (6, 7), 3: (4, 5, 4)}[dimensions]
    if name.startswith("ConvLSTM"):
        extents = (3, *extents)
    return normal(2, *extents, 4 if dimensions < 2 else 2)


_SEQUENCE = normal(2, 5, 3)
_MASK = np.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
_IMAGE = normal(2, 6, 7, 2)


def _boxes() -> dict[str, Any]:
    return {"images": np.round(255 * uniform(2, 8, 8, 3)), "labels": np.eye(4, dtype=np.float32)[:2]}


# what rules do not tell: (constructor, arguments of the call, keyword arguments of the call)
_LAYERS: dict[str, tuple[Callable[[], Any], Any, dict[str, Any]]] = {
    "Wrapper": (lambda: Wrapped(L.Dense(3)), (normal(2, 4),), {}),
    "Layer": (lambda: Scaled(), (normal(2, 4),), {}),
    "Bidirectional": (lambda: L.Bidirectional(L.LSTM(3, return_sequences=True)), (_SEQUENCE,), {}),
    "TimeDistributed": (lambda: L.TimeDistributed(L.Dense(3)), (_SEQUENCE,), {"mask": _MASK}),
    "SpectralNormalization": (lambda: L.SpectralNormalization(L.Dense(3)), (normal(2, 4),), {}),
    "RNN": (lambda: L.RNN([L.GRUCell(3), L.LSTMCell(2)], return_state=True), (_SEQUENCE,), {"mask": _MASK}),
    "StackedRNNCells": (
        lambda: L.StackedRNNCells([L.GRUCell(3), L.SimpleRNNCell(2)]),
        (normal(2, 4), [normal(2, 3), normal(2, 2)]),
        {},
    ),
    "GRUCell": (lambda: L.GRUCell(3, dropout=0.3), (normal(2, 4), [normal(2, 3)]), {}),
    "SimpleRNNCell": (lambda: L.SimpleRNNCell(3), (normal(2, 4), [normal(2, 3)]), {}),
    "LSTMCell": (lambda: L.LSTMCell(3), (normal(2, 4), [normal(2, 3), normal(2, 3, seed=1)]), {}),
    "Lambda": (lambda: L.Lambda(lambda x: tf.sin(x) * 2), (normal(2, 4),), {}),
    "EinsumDense": (lambda: L.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d"), (_SEQUENCE,), {}),
    "Embedding": (lambda: L.Embedding(7, 3), (whole(7, 2, 5),), {}),
    "ReversibleEmbedding": (lambda: L.ReversibleEmbedding(7, 3), (whole(7, 2, 5),), {}),
    "Attention": (lambda: L.Attention(use_scale=True, dropout=0.3), ([_SEQUENCE, normal(2, 4, 3)],), {}),
    "AdditiveAttention": (lambda: L.AdditiveAttention(), ([_SEQUENCE, normal(2, 4, 3)],), {}),
    "MultiHeadAttention": (
        lambda: L.MultiHeadAttention(2, 3, dropout=0.3), (_SEQUENCE, _SEQUENCE), {"use_causal_mask": True}
    ),
    "GroupQueryAttention": (lambda: L.GroupQueryAttention(3, 4, 2), (_SEQUENCE, normal(2, 4, 3)), {}),
    "CategoryEncoding": (lambda: L.CategoryEncoding(5, output_mode="count"), (whole(5, 2, 3),), {}),
    "Discretization": (lambda: L.Discretization([-0.5, 0.0, 0.7]), (normal(2, 5),), {}),
    "Normalization": (lambda: L.Normalization(mean=0.3, variance=2.0), (normal(2, 5),), {}),
    "IntegerLookup": (lambda: L.IntegerLookup(vocabulary=[3, 5, 6]), (whole(7, 2, 5),), {}),
    "Pipeline": (lambda: L.Pipeline([L.Rescaling(2.0), L.Dense(3)]), (normal(2, 4),), {}),
    "MelSpectrogram": (
        lambda: L.MelSpectrogram(fft_length=64, sequence_stride=20, sampling_rate=800, num_mel_bins=6, max_freq=400),
        (normal(2, 300),),
        {},
    ),
    "STFTSpectrogram": (
        lambda: L.STFTSpectrogram(frame_length=16, frame_step=8, fft_length=16), (normal(2, 80, 1),), {}
    ),
    "MixUp": (lambda: L.MixUp(seed=1), (_boxes(),), {}),
    "CutMix": (lambda: L.CutMix(seed=1), (_boxes(),), {}),
    "MaxNumBoundingBoxes": (
        lambda: L.MaxNumBoundingBoxes(3, bounding_box_format="xyxy"),
        ({"images": uniform(2, 8, 8, 3), "bounding_boxes": {"boxes": uniform(2, 5, 4), "labels": whole(3, 2, 5)}},),
        {},
    ),
    "RandomCrop": (lambda: L.RandomCrop(5, 6), (np.round(255 * uniform(2, 8, 8, 3)),), {}),
    "AdaptiveAveragePooling1D": (lambda: L.AdaptiveAveragePooling1D(3), (normal(2, 8, 4),), {}),
    "Masking": (lambda: L.Masking(), (_SEQUENCE * _MASK[..., None],), {}),
    "Softmax": (lambda: L.Softmax(), (_SEQUENCE[..., 0],), {"mask": _MASK}),
    "RepeatVector": (lambda: L.RepeatVector(3), (normal(2, 4),), {}),
    "RandomPosterization": (lambda: L.RandomPosterization(4, seed=1), (np.round(255 * uniform(2, 8, 8, 3)),), {}),
    "GroupNormalization": (lambda: L.GroupNormalization(groups=2), (normal(2, 5, 6, 4),), {}),
    "Reshape": (lambda: L.Reshape((-1, 2)), (normal(2, 4, 3),), {}),
}  # fmt: skip

# further ways of the same classes
_WAYS: dict[str, tuple[Callable[[], Any], Any, dict[str, Any]]] = {
    "LSTM masked": (
        lambda: L.LSTM(3, return_sequences=True, dropout=0.3, recurrent_dropout=0.2), (_SEQUENCE,), {"mask": _MASK}
    ),
    "LSTM stateful": (lambda: L.LSTM(3, stateful=True), (_SEQUENCE,), {}),
    "LSTM unrolled": (lambda: L.LSTM(3, unroll=True, go_backwards=True), (_SEQUENCE,), {}),
    "GRU reset before": (lambda: L.GRU(3, reset_after=False, return_state=True), (_SEQUENCE,), {}),
    "GRU stateful": (lambda: L.GRU(3, stateful=True), (_SEQUENCE,), {"mask": _MASK}),
    "SimpleRNN backwards": (
        lambda: L.SimpleRNN(3, go_backwards=True, return_sequences=True), (_SEQUENCE,), {"mask": _MASK}
    ),
    "Bidirectional sum": (lambda: L.Bidirectional(L.GRU(3), merge_mode="sum"), (_SEQUENCE,), {"mask": _MASK}),
    "Conv2D same": (lambda: L.Conv2D(4, 3, strides=2, padding="same", activation="relu"), (_IMAGE,), {}),
    "Conv2D dilated": (lambda: L.Conv2D(4, 2, dilation_rate=2, groups=2), (_IMAGE,), {}),
    "Conv1D causal": (lambda: L.Conv1D(4, 3, padding="causal", dilation_rate=2), (normal(2, 8, 3),), {}),
    "Conv2DTranspose same": (lambda: L.Conv2DTranspose(3, 3, strides=2, padding="same"), (_IMAGE,), {}),
    "DepthwiseConv2D multiplied": (lambda: L.DepthwiseConv2D(3, depth_multiplier=2, padding="same"), (_IMAGE,), {}),
    "BatchNormalization masked": (lambda: L.BatchNormalization(), (_SEQUENCE,), {"mask": _MASK}),
    "BatchNormalization images": (lambda: L.BatchNormalization(), (_IMAGE,), {}),
    "BatchNormalization axis 1": (lambda: L.BatchNormalization(axis=1), (_IMAGE,), {}),
    "GroupNormalization of each": (lambda: L.GroupNormalization(groups=-1, axis=1), (_SEQUENCE,), {}),
    "Embedding masked": (
        lambda: keras.Sequential([L.Embedding(7, 3, mask_zero=True), L.LSTM(4)]), (whole(7, 2, 5),), {}
    ),
    "Dense LoRA": (lambda: L.Dense(3, lora_rank=2, activation="softmax"), (normal(2, 4),), {}),
    "Dense regularised": (
        lambda: L.Dense(3, kernel_regularizer="l2", kernel_constraint="unit_norm"), (normal(2, 4),), {}
    ),
    "MultiHeadAttention masked": (
        lambda: L.MultiHeadAttention(2, 3), (_SEQUENCE, _SEQUENCE),
        {"attention_mask": np.tril(np.ones((2, 5, 5), bool)), "return_attention_scores": True},
    ),
    "ReversibleEmbedding reverse": (lambda: L.ReversibleEmbedding(7, 3), (normal(2, 5, 3),), {"reverse": True}),
    "AveragePooling2D same": (lambda: L.AveragePooling2D(3, strides=2, padding="same"), (_IMAGE,), {}),
    "MaxPooling2D same": (lambda: L.MaxPooling2D(3, strides=2, padding="same"), (_IMAGE,), {}),
    "UpSampling2D bilinear": (lambda: L.UpSampling2D(2, interpolation="bilinear"), (_IMAGE,), {}),
    "Dense float16": (lambda: L.Dense(3, dtype="mixed_float16"), (normal(2, 4),), {}),
    "Dense bfloat16": (lambda: L.Dense(3, dtype="mixed_bfloat16"), (normal(2, 4),), {}),
    "Resizing bicubic": (lambda: L.Resizing(5, 9, interpolation="bicubic", antialias=True), (_IMAGE,), {}),
    "RandomFlip vertical": (lambda: L.RandomFlip("vertical", seed=3), (_IMAGE,), {}),
    "RandomRotation nearest": (
        lambda: L.RandomRotation(0.4, fill_mode="reflect", interpolation="nearest", seed=3), (_IMAGE,), {}
    ),
    "CategoryEncoding multi_hot": (lambda: L.CategoryEncoding(5), (whole(5, 2, 3),), {}),
    "CategoryEncoding one_hot": (lambda: L.CategoryEncoding(5, output_mode="one_hot"), (whole(5, 4, 1),), {}),
    "SpatialDropout2D": (lambda: L.SpatialDropout2D(0.4, seed=1), (_IMAGE,), {}),
    "Dropout noise shape": (lambda: L.Dropout(0.4, noise_shape=(None, 1, 3), seed=1), (_SEQUENCE,), {}),
}  # fmt: skip


class Wrapped(L.Wrapper):
    def call(self, x: Any) -> Any:
        return self.layer(x) * 2


class Scaled(L.Layer):
    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=shape[1:], initializer="ones")
        self.count = self.add_weight(shape=(), dtype="int32", trainable=False, initializer="zeros")

    def call(self, x: Any) -> Any:
        self.count.assign_add(1)
        self.add_loss(tf.reduce_sum(x))
        return x * self.scale


def of_layer(name: str, build: Callable[[], Any], args: Any, kwargs: dict[str, Any]) -> KerasCase:
    structure = (args, {name: x for name, x in kwargs.items() if not isinstance(x, bool)})
    settings = {name: x for name, x in kwargs.items() if isinstance(x, bool)}

    def make() -> Program:
        keras.utils.set_random_seed(1)
        layer = build()
        modes = [True, False] if "training" in inspect.signature(layer.call).parameters else [None]

        def call(flat: Sequence[Any], training: bool | None) -> Any:
            given, named = tf.nest.pack_sequence_as(structure, flat)
            mode = {} if training is None else {"training": training}
            return layer(*given, **named, **settings, **mode)

        call([tf.constant(x) for x in tf.nest.flatten(structure)], modes[-1])  # which builds it

        def program(*flat: Any) -> list[Any]:
            variables = layer.trainable_variables
            return [differentiated(lambda some, t=t: call(some, t), flat, variables) for t in modes]

        return program

    return KerasCase(name, make, tuple(map(np.asarray, tf.nest.flatten(structure))))


def layers() -> Iterator[KerasCase]:
    for name, cls in classes_of("layers").items():
        if name in _LAYERS:
            yield of_layer(f"layers.{name}", *_LAYERS[name])
        elif f"layers.{name}" not in UNTRIED:
            more = {"seed": zlib.crc32(name.encode()) % 1000} if "seed" in _names(cls) else {}
            some = _required(cls) | more
            yield of_layer(f"layers.{name}", lambda cls=cls, some=some: cls(**some), (_inputs(name, cls),), {})
    for name, row in _WAYS.items():
        yield of_layer(f"layers.{name}", *row)


def _names(cls: type) -> list[str]:
    return list(inspect.signature(cls.__init__).parameters)


# ---- losses and metrics ----------------------------------------------------------------------------------------------

_LABELS = whole(4, 6)
_ONE_HOT = np.eye(4, dtype=np.float32)[_LABELS]
_PROBABILITIES = (lambda p: p / p.sum(1, keepdims=True))(uniform(6, 4))
_BINARY = (whole(2, 6, 4).astype(np.float32), uniform(6, 4, seed=3))
_REAL = (uniform(6, 4, seed=5), uniform(6, 4, seed=6))
_WEIGHTS = uniform(6, seed=9)
_SEGMENTED = (whole(3, 6, 4), whole(3, 6, 4, seed=2))

# (what is true, what is predicted), by the first name that is a part of the class's
_TRUTHS: list[tuple[str, tuple[np.ndarray, np.ndarray]]] = [
    ("CTC", (1 + whole(3, 2, 3), normal(2, 7, 5))),
    ("Circle", (_LABELS, normal(6, 4))),
    ("OneHot", (_ONE_HOT, _PROBABILITIES)),
    ("MeanIoU", _SEGMENTED),
    ("BinaryIoU", _BINARY),
    ("IoU", _SEGMENTED),
    ("Sparse", (_LABELS, _PROBABILITIES)),
    ("CategoricalGeneralized", (_LABELS, _PROBABILITIES)),
    ("Categorical", (_ONE_HOT, _PROBABILITIES)),
    ("TopK", (_ONE_HOT, _PROBABILITIES)),
    ("F1Score", (_ONE_HOT, _PROBABILITIES)),
    ("FBetaScore", (_ONE_HOT, _PROBABILITIES)),
    ("KLDivergence", (_PROBABILITIES, uniform(6, 4))),
    ("Hinge", (_BINARY[0] * 2 - 1, normal(6, 4))),
    ("Binary", _BINARY),
    ("AUC", _BINARY), ("Precision", _BINARY), ("Recall", _BINARY), ("Specificity", _BINARY), ("Sensitivity", _BINARY),
    ("Positives", _BINARY), ("Negatives", _BINARY), ("Dice", _BINARY), ("Tversky", _BINARY),
    ("Accuracy", _SEGMENTED),
    ("", _REAL),
]  # fmt: skip
_METRIC_ARGUMENTS = {
    "num_classes": 3,
    "target_class_ids": [0, 2],
    "recall": 0.5,
    "precision": 0.5,
    "specificity": 0.5,
    "sensitivity": 0.5,
}


def _truths(name: str) -> tuple[np.ndarray, np.ndarray]:
    return next(pair for part, pair in _TRUTHS if part in name)


def _of_loss(name: str, build: Callable[..., Any], weighted: bool) -> KerasCase:
    def make() -> Program:
        loss, each = build(), build(reduction="none")

        def program(true: Any, predicted: Any, *weights: Any) -> list[Any]:
            def both(flat: Sequence[Any]) -> list[Any]:
                return [each(true, flat[0]), loss(true, flat[0]), *(loss(true, flat[0], w) for w in weights)]

            return differentiated(both, [predicted], [])

        return program

    true, predicted = _truths(name)
    return KerasCase(f"losses.{name}", make, (true, predicted, *([_WEIGHTS] if weighted else [])))


def losses() -> Iterator[KerasCase]:
    for name, cls in classes_of("losses").items():
        if f"losses.{name}" not in UNTRIED:
            yield _of_loss(name, cls, weighted=name != "CTC")
    for name in ("BinaryCrossentropy", "CategoricalCrossentropy", "SparseCategoricalCrossentropy"):
        cls = getattr(keras.losses, name)
        case = _of_loss(name, lambda cls=cls, **more: cls(from_logits=True, **more), True)
        yield case._replace(name=f"losses.{name} of logits")


def metrics() -> Iterator[KerasCase]:
    for name, cls in classes_of("metrics").items():
        if f"metrics.{name}" in UNTRIED:
            continue
        required = list(inspect.signature(cls.__init__).parameters.values())[1:]
        some = {
            p.name: _METRIC_ARGUMENTS[p.name] for p in required if p.name in _METRIC_ARGUMENTS and p.default is p.empty
        }
        if name == "MeanMetricWrapper":
            some["fn"] = keras.losses.mean_squared_error
        if name.startswith("OneHot"):
            some["num_classes"] = 4
        weighted = not name.startswith(("R2", "F1", "FB"))
        weights = whole(3, *((6,) if "OneHot" in name else (6, 4))) if "IoU" in name else _WEIGHTS

        def make(name: str = name, cls: Any = cls, some: Any = some, weighted: bool = weighted) -> Program:
            metric, single = cls(**some), name in ("Mean", "Sum")
            if not single:  # some make their variables then
                metric.update_state(*_truths(name))
                metric.reset_state()

            def program(true: Any, predicted: Any, of_samples: Any) -> list[Any]:
                operands = (predicted,) if single else (true, predicted)
                metric.update_state(*operands)
                first = metric.result()
                metric.update_state(*operands, **({"sample_weight": of_samples} if weighted else {}))
                return [first, metric.result()]

            return program

        yield KerasCase(f"metrics.{name}", make, (*_truths(name), weights))


# ---- optimizers and what belongs to weights --------------------------------------------------------------------------


def _of_optimizer(name: str, build: Callable[[], Any]) -> KerasCase:
    def make() -> Program:
        w = keras.Variable(normal(5, 3), name="w")
        b = keras.Variable(normal(3), name="b")
        table = keras.Variable(normal(6, 3, seed=4), name="table")
        optimizer = build()
        optimizer.build([w, b, table])

        def program(x: Any, at: Any) -> list[Any]:
            def step(scale: float) -> Any:
                with tf.GradientTape() as tape:
                    y = tf.tanh(x @ w.value + b.value) * scale + tf.gather(table.value, at)
                    loss = tf.reduce_mean(tf.square(y))
                    scaled = optimizer.scale_loss(loss)
                sources = [w, b, table]
                optimizer.apply(tape.gradient(scaled, [v.value for v in sources]), sources)
                return loss

            return [step(1.0), step(0.5)]

        return program

    return KerasCase(f"optimizers.{name}", make, (normal(4, 5), np.asarray([1, 3, 3, 0], np.int32)))


def optimizers() -> Iterator[KerasCase]:
    o = keras.optimizers
    adam = lambda **more: lambda: o.Adam(0.1, **more)  # noqa: E731
    rows: dict[str, Callable[[], Any]] = {
        "LossScaleOptimizer": lambda: o.LossScaleOptimizer(o.Adam(0.1), initial_scale=64.0, dynamic_growth_steps=3),
        "MultiOptimizer": lambda: o.MultiOptimizer(o.OptimizerMap(o.Adam(0.1), {"w": o.SGD(0.1)})),
        "Adam clipped by norm": adam(clipnorm=0.1),
        "Adam clipped by value": adam(clipvalue=0.01),
        "Adam clipped by global norm": adam(global_clipnorm=0.1),
        "Adam averaged": adam(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
        "Adam accumulating": adam(gradient_accumulation_steps=2),
        "Adam decaying": adam(weight_decay=0.01),
        "Adam amsgrad": adam(amsgrad=True),
        "SGD nesterov": lambda: o.SGD(0.1, momentum=0.9, nesterov=True),
        "RMSprop centered": lambda: o.RMSprop(0.1, momentum=0.5, centered=True),
    }
    for name, cls in classes_of("optimizers").items():
        if f"optimizers.{name}" not in UNTRIED and name not in rows:
            yield _of_optimizer(name, lambda cls=cls: cls(learning_rate=0.1))
    for name, build in rows.items():
        yield _of_optimizer(name, build)


_SCHEDULE_ARGUMENTS: dict[str, Any] = {
    "initial_learning_rate": 0.5,
    "decay_steps": 5,
    "first_decay_steps": 4,
    "decay_rate": 0.7,
    "boundaries": [2, 5],
    "values": [0.5, 0.3, 0.1],
}


def schedules() -> Iterator[KerasCase]:
    for name, cls in classes_of("optimizers.schedules").items():
        if f"schedules.{name}" in UNTRIED:
            continue
        some = {n: _SCHEDULE_ARGUMENTS[n] for n in _names(cls) if n in _SCHEDULE_ARGUMENTS}
        case = _of_optimizer(name, lambda cls=cls, some=some: keras.optimizers.SGD(cls(**some)))

        def make(cls: Any = cls, some: Any = some, trained: Any = case.make) -> Program:
            schedule, step = cls(**some), trained()
            return lambda x, at: [*step(x, at), *(schedule(at[i] * 3) for i in range(3))]

        yield KerasCase(f"schedules.{name}", make, case.arguments)


def of_weights() -> Iterator[KerasCase]:
    """Constraints, regularizers and initializers (in a graph, with their own seeds)."""
    w = normal(4, 3, seed=8) * 3
    for name, cls in classes_of("constraints").items():
        if f"constraints.{name}" not in UNTRIED:
            yield KerasCase(f"constraints.{name}", lambda cls=cls: lambda x: cls()(x), (w,))
    for name, cls in classes_of("regularizers").items():
        if f"regularizers.{name}" not in UNTRIED:
            yield KerasCase(
                f"regularizers.{name}",
                lambda cls=cls: lambda x: differentiated(lambda flat: cls()(flat[0]), [x], []),
                (w,),
            )
    for name, cls in classes_of("initializers").items():
        if f"initializers.{name}" not in UNTRIED:
            shape = (4, 4) if "dentity" in name else (3, 5)
            shape = (7, 1, 4) if name == "STFT" else shape

            def make(cls: Any = cls, shape: Any = shape) -> Program:
                initializer = cls(**({"seed": 3} if "seed" in _names(cls) else {}))
                return lambda x: tf.convert_to_tensor(initializer(shape)) + 0.0 * x

            yield KerasCase(f"initializers.{name}", make, (np.zeros((), np.float32),))


# ---- functions -------------------------------------------------------------------------------------------------------


def activations() -> Iterator[KerasCase]:
    for name, fn in inspect.getmembers(keras.activations, inspect.isfunction):
        fn = functools.partial(fn, threshold=0.2, default_value=0.1) if name == "threshold" else fn
        if f"activations.{name}" not in UNTRIED:
            yield KerasCase(
                f"activations.{name}",
                lambda fn=fn: lambda x: differentiated(lambda flat: fn(flat[0]), [x], []),
                (normal(3, 4),),
            )


AREAS: dict[str, Callable[[], Iterator[KerasCase]]] = {
    "layers": layers,
    "losses": losses,
    "metrics": metrics,
    "optimizers": optimizers,
    "schedules": schedules,
    "weights": of_weights,
    "activations": activations,
}

_BASE = "a base class, which computes nothing"
_STRINGS = "it computes on strings, on TensorFlow's host"
UNTRIED: dict[str, str] = {
    "layers.InputLayer": "it names an input, and computes nothing",
    "layers.InputSpec": "it is no layer",
    "layers.Hashing": _STRINGS,
    "layers.HashedCrossing": _STRINGS,
    "layers.StringLookup": _STRINGS,
    "layers.TextVectorization": _STRINGS,
    "layers.JaxLayer": "it holds a program of JAX, which TensorFlow calls as compiled XLA",
    "layers.FlaxLayer": "it holds a program of JAX, which TensorFlow calls as compiled XLA",
    "layers.TorchModuleWrapper": "it needs PyTorch as the backend of Keras",
    "layers.TFSMLayer": "it needs a folder: tests of SavedModels have it",
    "losses.Loss": _BASE,
    "metrics.Metric": _BASE,
    "optimizers.Optimizer": _BASE,
    "optimizers.OptimizerMap": "it says which optimizer of MultiOptimizer a variable has, and is in its case",
    "schedules.LearningRateSchedule": _BASE,
    "constraints.Constraint": _BASE,
    "regularizers.Regularizer": _BASE,
    "initializers.Initializer": _BASE,
    "activations.deserialize": "it reads a configuration",
    "activations.serialize": "it writes a configuration",
    "activations.get": "it looks a function up",
}
