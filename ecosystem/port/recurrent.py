"""LSTM and GRU of PyTorch, Keras, Flax (Linen and NNX), Haiku and Equinox: other orders of gates, other biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ecosystem.port.pair import Pair, Program, Weights, randomized
from ecosystem.port.tables import written

FEATURES, UNITS = 6, 8
GATES = {"LSTM": "ifgo", "GRU": "rzn"}  # PyTorch's order
Arguments = tuple[tuple[Any, ...], tuple[Any, ...]]


def _sequences(size: int) -> Arguments:
    batch, length = ((2, 7), (3, 11))[size]
    values = np.random.default_rng(3).standard_normal((batch, length, FEATURES)).astype(np.float32)
    return (values,), (values,)


def _torch(kind: str, layers: int = 1, bidirectional: bool = False) -> Callable[[], Program]:
    def build() -> Program:
        import torch

        network = getattr(torch.nn, kind)(FEATURES, UNITS, layers, batch_first=True, bidirectional=bidirectional)
        return randomized(network.eval(), 1)

    return build


def _keras(kind: str, layers: int = 1, bidirectional: bool = False, **settings: Any) -> Callable[[], Program]:
    def build() -> Program:
        import keras

        model = keras.Sequential([keras.Input((None, FEATURES))], name="network")
        for i in range(layers):
            layer = getattr(keras.layers, kind)(UNITS, return_sequences=True, name=f"layer{i}", **settings)
            model.add(keras.layers.Bidirectional(layer, name=f"layer{i}") if bidirectional else layer)
        return randomized(model, 2)

    return build


def _linen(kind: str) -> Callable[[], Program]:
    def build() -> Program:
        import jax
        from flax import linen

        cell = linen.OptimizedLSTMCell if kind == "LSTM" else linen.GRUCell
        network = linen.RNN(cell(UNITS))
        tree = network.init(jax.random.key(0), np.zeros((1, 2, FEATURES), np.float32))
        return randomized((network.apply, tree), 2)

    return build


def _nnx(kind: str) -> Callable[[], Program]:
    def build() -> Program:
        from flax import nnx

        cell = nnx.OptimizedLSTMCell if kind == "LSTM" else nnx.GRUCell
        return randomized(nnx.RNN(cell(FEATURES, UNITS, rngs=nnx.Rngs(0))), 2)

    return build


def _haiku(kind: str) -> Callable[[], Program]:
    def build() -> Program:
        import haiku
        import jax

        def network(sequences: Any) -> Any:
            core = getattr(haiku, kind)(UNITS, name="core")
            state = core.initial_state(sequences.shape[0])
            return haiku.dynamic_unroll(core, sequences, state, time_major=False)[0]

        pure = haiku.without_apply_rng(haiku.transform(network))
        tree = pure.init(jax.random.key(0), np.zeros((1, 2, FEATURES), np.float32))
        return randomized((pure.apply, tree), 2)

    return build


def _equinox(kind: str) -> Callable[[], Program]:
    def build() -> Program:
        import equinox as eqx
        import jax
        import jax.numpy as jnp

        cell = getattr(eqx.nn, f"{kind}Cell")(FEATURES, UNITS, key=jax.random.key(0))

        def unrolled(cell: Any, sequences: Any) -> Any:
            def one(sequence: Any) -> Any:
                def step(state: Any, x: Any) -> Any:
                    new = cell(x, state)
                    return new, new[0] if kind == "LSTM" else new

                zeros = jnp.zeros(UNITS)
                return jax.lax.scan(step, (zeros, zeros) if kind == "LSTM" else zeros, sequence)[1]

            return jax.vmap(one)(sequences)

        return randomized((unrolled, cell), 2)

    return build


def gates(kind: str, values: Weights, layer: str = "l0") -> dict[str, np.ndarray]:
    """Return PyTorch's weights gate by gate: "iwf" is the input's weight of gate f, "hbf" the bias of the state."""
    parts = {}
    for of in "ih":
        for to in ("weight", "bias"):
            whole = values[f"{to}_{of}h_{layer}"]
            for gate, part in zip(GATES[kind], np.split(whole, len(GATES[kind])), strict=True):
                parts[f"{of}{to[0]}{gate}"] = part
    return parts


def joined(parts: dict[str, np.ndarray], of: str, order: str) -> np.ndarray:
    """Return the gates' weights in an order, the gates along the last axis."""
    return np.concatenate([parts[of + gate].T for gate in order], axis=-1)


def both(parts: dict[str, np.ndarray], order: str) -> np.ndarray:
    """Return the sum of both biases in an order."""
    return joined(parts, "ib", order) + joined(parts, "hb", order)


def keras_cell(kind: str, parts: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order = "ifgo" if kind == "LSTM" else "zrn"
    bias = both(parts, order) if kind == "LSTM" else np.stack([joined(parts, "ib", order), joined(parts, "hb", order)])
    return joined(parts, "iw", order), joined(parts, "hw", order), bias


def _to_keras(kind: str, layers: int = 1, bidirectional: bool = False) -> Callable[[Weights], Weights]:
    def table(values: Weights) -> Weights:
        result = {}
        for i in range(layers):
            for suffix in ("", "_reverse") if bidirectional else ("",):
                side = f"{'backward' if suffix else 'forward'}_layer{i}/" if bidirectional else ""
                prefix = f"network/layer{i}/{side}{kind.lower()}_cell"
                arrays = keras_cell(kind, gates(kind, values, f"l{i}{suffix}"))
                result |= {
                    f"{prefix}/{n}": a for n, a in zip(("kernel", "recurrent_kernel", "bias"), arrays, strict=True)
                }
        return result

    return table


def _to_linen(kind: str) -> Callable[[Weights], Weights]:
    def table(values: Weights) -> Weights:
        parts, result = gates(kind, values), {}
        for gate in GATES[kind]:
            for of in "ih":
                result[f"params.cell.{of}{gate}.kernel"] = parts[f"{of}w{gate}"].T
            if gate == "n":
                result |= {f"params.cell.{of}n.bias": parts[f"{of}bn"] for of in "ih"}
            else:
                side = "h" if kind == "LSTM" else "i"
                result[f"params.cell.{side}{gate}.bias"] = parts[f"ib{gate}"] + parts[f"hb{gate}"]
        return result

    return table


def _to_nnx(kind: str) -> Callable[[Weights], Weights]:
    def table(values: Weights) -> Weights:
        parts, order = gates(kind, values), GATES[kind]
        result = {f"cell.dense_{of}.kernel": joined(parts, f"{of}w", order) for of in "ih"}
        if kind == "LSTM":
            return result | {"cell.dense_h.bias": both(parts, order)}
        bias = np.concatenate([both(parts, "rz"), parts["ibn"]])
        return result | {"cell.dense_i.bias": bias}

    return table


def _to_haiku(values: Weights) -> Weights:
    parts = gates("LSTM", values)
    kernel = np.concatenate([joined(parts, "iw", "igfo"), joined(parts, "hw", "igfo")])
    bias = both(parts, "igfo")
    bias[2 * UNITS : 3 * UNITS] -= 1
    return {"core/linear.w": kernel, "core/linear.b": bias}


def _to_equinox(kind: str) -> Callable[[Weights], Weights]:
    def table(values: Weights) -> Weights:
        result = {f"weight_{of}h": values[f"weight_{of}h_l0"] for of in "ih"}
        parts = gates(kind, values)
        if kind == "LSTM":
            return result | {"bias": both(parts, "ifgo")}
        return result | {"bias": np.concatenate([both(parts, "rz"), parts["ibn"]]), "bias_n": parts["hbn"]}

    return table


def _haiku_to_keras(values: Weights) -> Weights:
    def order(whole: np.ndarray) -> np.ndarray:
        i, g, f, o = np.split(whole, 4, axis=-1)
        return np.concatenate([i, f, g, o], axis=-1)

    bias = order(values["core/linear.b"])
    bias[UNITS : 2 * UNITS] += 1
    kernel, recurrent = np.split(order(values["core/linear.w"]), [FEATURES])
    cell = "network/layer0/lstm_cell"
    return {f"{cell}/kernel": kernel, f"{cell}/recurrent_kernel": recurrent, f"{cell}/bias": bias}


def _haiku_gru_to_keras(values: Weights) -> Weights:
    signs = np.repeat(np.float32([-1, 1, 1]), UNITS)
    names = {"kernel": "w_i", "recurrent_kernel": "w_h", "bias": "b"}
    return {f"network/layer0/gru_cell/{to}": values[f"core.{of}"] * signs for to, of in names.items()}


def _keras_to_linen(values: Weights) -> Weights:
    cell, result = "network/layer0/gru_cell", {}
    inputs, state = values[f"{cell}/bias"]
    sides = {"i": (values[f"{cell}/kernel"], inputs), "h": (values[f"{cell}/recurrent_kernel"], state)}
    for of, (kernels, biases) in sides.items():
        for gate, kernel, bias in zip("zrn", np.split(kernels, 3, axis=-1), np.split(biases, 3), strict=True):
            result[f"params.cell.{of}{gate}.kernel"] = kernel
            if of == "i" or gate == "n":
                result[f"params.cell.{of}{gate}.bias"] = bias
            else:
                result[f"params.cell.i{gate}.bias"] = result[f"params.cell.i{gate}.bias"] + bias
    return result


def _pair(
    name: str,
    source: Callable[[], Program],
    target: Callable[[], Program],
    table: Callable[[Weights], Weights],
    traps: str,
    difference: str = "",
) -> Pair:
    return Pair(
        name,
        source,
        target,
        _sequences,
        written(table),
        traps=traps,
        difference=difference,
        source_outputs=lambda result: result[0] if "PyTorch to" in name else result,
    )


SUM = "the target has the sum of both biases"
PAIRS = [
    _pair("LSTM: PyTorch to Keras", _torch("LSTM", 2), _keras("LSTM", 2), _to_keras("LSTM", 2), f"two layers; {SUM}"),
    _pair(
        "LSTM in both directions: PyTorch to Keras",
        _torch("LSTM", 2, True),
        _keras("LSTM", 2, True),
        _to_keras("LSTM", 2, True),
        SUM,
    ),
    _pair(
        "GRU: PyTorch to Keras",
        _torch("GRU", 2),
        _keras("GRU", 2),
        _to_keras("GRU", 2),
        "order of gates; stacked biases",
    ),
    _pair("LSTM: PyTorch to Flax Linen", _torch("LSTM"), _linen("LSTM"), _to_linen("LSTM"), f"a kernel a gate; {SUM}"),
    _pair(
        "GRU: PyTorch to Flax Linen", _torch("GRU"), _linen("GRU"), _to_linen("GRU"), f"a kernel a gate; {SUM} but one"
    ),
    _pair("LSTM: PyTorch to Flax NNX", _torch("LSTM"), _nnx("LSTM"), _to_nnx("LSTM"), SUM),
    _pair(
        "GRU: PyTorch to Flax NNX",
        _torch("GRU"),
        _nnx("GRU"),
        _to_nnx("GRU"),
        "the target has no bias of the state, which PyTorch multiplies by the reset gate",
        difference="bias",
    ),
    _pair(
        "LSTM: PyTorch to Haiku",
        _torch("LSTM"),
        _haiku("LSTM"),
        _to_haiku,
        f"one kernel of input and state; order of gates; one is added to the forget gate; {SUM}",
    ),
    _pair("LSTM: PyTorch to Equinox", _torch("LSTM"), _equinox("LSTM"), _to_equinox("LSTM"), SUM),
    _pair("GRU: PyTorch to Equinox", _torch("GRU"), _equinox("GRU"), _to_equinox("GRU"), f"{SUM} but one"),
    _pair(
        "LSTM: Haiku to Keras",
        _haiku("LSTM"),
        _keras("LSTM"),
        _haiku_to_keras,
        "one kernel of input and state; order of gates; one is added to the forget gate",
    ),
    _pair(
        "GRU: Haiku to Keras",
        _haiku("GRU"),
        _keras("GRU", reset_after=False),
        _haiku_gru_to_keras,
        "the update gate is one minus the other's: its weights change their sign",
    ),
    _pair("GRU: Keras to Flax Linen", _keras("GRU"), _linen("GRU"), _keras_to_linen, f"a kernel a gate; {SUM} but one"),
]
