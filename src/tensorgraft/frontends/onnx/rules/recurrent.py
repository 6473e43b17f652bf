"""Rules for recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.operations.recurrent import lstm_gates
from tensorgraft.hub.value import Value, with_operators


def _affine(alpha: float, beta: float) -> Callable[..., Any]:
    return with_operators(lambda xp, x: x * alpha + beta)


def activation(name: str, alpha: float | None, beta: float | None) -> Callable[[Any, Any], Any]:
    """Return an activation of recurrent layers, whose names may have any case."""
    simple = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu", "softplus": "softplus"}
    kind = name.lower()
    if kind in simple:
        return lambda xp, x: getattr(xp, simple[kind])(x)

    def default(value: float | None, usual: float) -> float:
        return usual if value is None else value

    table: dict[str, Callable[[Any, Any], Any]] = {
        "affine": _affine(default(alpha, 1.0), default(beta, 0.0)),
        "leakyrelu": lambda xp, x: xp.leaky_relu(x, default(alpha, 0.01)),
        "thresholdedrelu": lambda xp, x: xp.where(xp.greater(x, default(alpha, 1.0)), x, xp.zeros_like(x)),
        "scaledtanh": lambda xp, x: xp.multiply(xp.tanh(xp.multiply(x, default(beta, 1.0))), default(alpha, 1.0)),
        "hardsigmoid": lambda xp, x: xp.clip(_affine(default(alpha, 0.2), default(beta, 0.5))(xp, x), 0.0, 1.0),
        "elu": lambda xp, x: xp.elu(x, default(alpha, 1.0)),
        "softsign": with_operators(lambda xp, x: x / (abs(x) + 1)),
    }
    if kind not in table:
        raise NotImplementedError(f"the activation {name!r} of a recurrent layer is not known")
    return table[kind]


TAKES_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
TAKES_BETA = {"affine", "scaledtanh", "hardsigmoid"}


@dataclass(kw_only=True)
class LayerOptions:
    """The attributes that recurrent operators have in common."""

    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float | None = None
    direction: str = "forward"
    layout: int = 0

    def functions(self, directions: int, usual: Sequence[str]) -> list[list[Callable[[Any, Any], Any]]]:
        """Return the activations of each direction; the usual ones if the node does not state them."""
        alphas, betas = iter(self.activation_alpha), iter(self.activation_beta)
        functions = []
        for name in self.activations or tuple(usual) * directions:
            kind = name.lower()
            alpha = next(alphas, None) if kind in TAKES_ALPHA else None
            functions.append(activation(name, alpha, next(betas, None) if kind in TAKES_BETA else None))
        size = len(usual)
        return [functions[i * size : (i + 1) * size] for i in range(directions)]


class RecurrentLayer:
    """A recurrent operator's layouts, directions, lengths and biases."""

    def __init__(
        self, xp: Any, x: Any, w: Any, r: Any, b: Any, lengths: Any, states: Sequence[Any], options: dict[str, Any]
    ) -> None:
        self.xp, self.options = xp, LayerOptions(**options)
        self.batch_first = bool(self.options.layout)
        self.x = xp.swapaxes(x, 0, 1) if self.batch_first else x  # (T, N, I)
        self.w, self.r, self.b, self.lengths = w, r, b, lengths
        self.steps, self.batch, _ = self.x.shape
        self.directions, self.hidden = self.sizes()
        shape = (self.directions, self.batch, self.hidden)
        self.states = [
            xp.zeros(shape, xp.dtype_of(x)) if s is None else xp.swapaxes(s, 0, 1) if self.batch_first else s
            for s in states
        ]

    def sizes(self) -> tuple[int, int]:
        """Return (directions, the size of the state)."""
        return self.r.shape[0], self.r.shape[2]

    def product(self, x: Any, weight: Any, bias: Any) -> Any:
        """Return x by a weight (out, in) of one direction, and its bias."""
        return self.xp.linear(x, weight, bias)

    def part(self, x: Any, d: int) -> Any:
        """Return what belongs to a direction."""
        if isinstance(x, tuple):
            return tuple(self.part(v, d) for v in x)
        return self.xp.squeeze(self.xp.take_slice(x, 0, d, d + 1), 0)

    def run(self, step: Callable[..., Any], gates: int, sums: bool = True) -> list[Any]:
        """Return (every h, the last of each state). `step(direction, states, projected, r, bias)` gives the next
        states. If it `sums` both products, `bias` is that of both: added to all steps at once, it would be one more
        pass over memory."""
        xp = self.xp
        outputs, last = [], []
        for d in range(self.directions):
            w, r = self.part(self.w, d), self.part(self.r, d)
            size = gates * self.hidden
            w_bias = r_bias = None
            if self.b is not None:
                w_bias, r_bias = xp.split(self.part(self.b, d), (size, size), 0)
                w_bias, r_bias = (None, xp.add(w_bias, r_bias)) if sums else (w_bias, r_bias)
            is_reverse = self.options.direction == "reverse" or d == 1
            ys, states = self._direction(d, step, self.product(self.x, w, w_bias), r, r_bias, is_reverse)
            outputs.append(ys)
            last.append(states)
        every = xp.stack(outputs, axis=1)  # (T, D, N, H)
        finals = [xp.stack([states[i] for states in last], axis=0) for i in range(len(self.states))]
        if self.batch_first:
            return [xp.permute_dims(every, (2, 0, 1, 3)), *(xp.swapaxes(s, 0, 1) for s in finals)]
        return [every, *finals]

    def _direction(
        self, d: int, step: Callable[..., Any], projected: Any, r: Any, r_bias: Any, is_reverse: bool
    ) -> tuple[Any, list[Any]]:
        xp = self.xp
        init = tuple(self.part(s, d) for s in self.states)
        times = xp.iota(self.steps, dtypes.int64)
        lengths = None if self.lengths is None else xp.astype(self.lengths, dtypes.int64)

        def body(states: Any, at: Any) -> Any:
            x, t = at
            new = step(d, states, x, r, r_bias)
            h = new[0]
            if lengths is not None:  # rows that have ended keep their states, and give zeros
                runs = xp.expand_dims(xp.less(t, lengths), 1)
                h = xp.where(runs, h, xp.zeros_like(h))
                new = tuple(xp.where(runs, a, b) for a, b in zip(new, states, strict=True))
            return new, h

        states, ys = xp.scan(body, init, (projected, times), length=self.steps, reverse=is_reverse)
        return ys, list(states)

    def clipped(self, x: Any) -> Any:
        limit = self.options.clip
        return x if limit is None else self.xp.clip(x, -limit, limit)


@rule("RNN", like=[LayerOptions])
def rnn(
    xp: Any, x: Any, w: Any, r: Any, b: Any = None, sequence_lens: Any = None, initial_h: Any = None, **options: Any
) -> Any:
    layer = RecurrentLayer(xp, x, w, r, b, sequence_lens, [initial_h], options)
    if len(layer.options.activations) < layer.directions:
        layer.options.activations = ()
    functions = layer.options.functions(layer.directions, ("Tanh",))

    def step(d: int, states: Any, projected: Any, r: Any, bias: Any) -> Any:
        total = layer.clipped(xp.add(projected, layer.product(states[0], r, bias)))
        return (functions[d][0](xp, total),)

    return layer.run(step, 1)


@rule("GRU", like=[LayerOptions])
def gru(
    xp: Any, x: Any, w: Any, r: Any, b: Any = None, sequence_lens: Any = None, initial_h: Any = None, *,
    linear_before_reset: int = 0, **options: Any,
) -> Any:  # fmt: skip
    """The gates are z, r, h; the state is z h + (1 - z) n."""
    layer = RecurrentLayer(xp, x, w, r, b, sequence_lens, [initial_h], options)
    functions = layer.options.functions(layer.directions, ("Sigmoid", "Tanh"))
    size = layer.hidden

    def step(d: int, states: Any, projected: Any, r: Any, bias: Any) -> Any:
        (h,) = states
        f, g = functions[d]
        x_z, x_r, x_n = xp.split(projected, (size,) * 3, 1)
        r_z, r_r, r_n = xp.split(r, (size,) * 3, 0)
        b_z, b_r, b_n = (None,) * 3 if bias is None else xp.split(bias, (size,) * 3, 0)
        z = f(xp, layer.clipped(xp.add(x_z, layer.product(h, r_z, b_z))))
        reset = f(xp, layer.clipped(xp.add(x_r, layer.product(h, r_r, b_r))))
        if linear_before_reset:
            inner = xp.multiply(reset, layer.product(h, r_n, b_n))
        else:
            inner = layer.product(xp.multiply(reset, h), r_n, b_n)
        n = g(xp, layer.clipped(xp.add(x_n, inner)))
        return (_between(xp, z, h, n),)

    return layer.run(step, 3, sums=False)


@with_operators
def _between(xp: Any, z: Value, h: Value, n: Value) -> Value:
    """Return the next state: the old one as far as `z` says, else the new one."""
    return (1 - z) * n + z * h


@with_operators
def _cell(xp: Any, forget: Value, c: Value, i: Value, n: Value) -> Value:
    return forget * c + i * n


@rule("LSTM", like=[LayerOptions])
def lstm(
    xp: Any, x: Any, w: Any, r: Any, b: Any = None, sequence_lens: Any = None, initial_h: Any = None,
    initial_c: Any = None, p: Any = None, *, input_forget: int = 0, **options: Any,
) -> Any:  # fmt: skip
    layer = RecurrentLayer(xp, x, w, r, b, sequence_lens, [initial_h, initial_c], options)
    return lstm_of(layer, p, input_forget)


def lstm_of(layer: RecurrentLayer, p: Any, input_forget: int) -> list[Any]:
    """Return the results of an LSTM. The gates are i, o, f, c; `p` has peepholes of i, o, f."""
    xp, size = layer.xp, layer.hidden
    names = ("Sigmoid", "Tanh", "Tanh")
    functions = layer.options.functions(layer.directions, names)
    usual = p is None and not input_forget and tuple(layer.options.activations) in ((), names * layer.directions)

    def step(d: int, states: Any, projected: Any, r: Any, bias: Any) -> Any:
        h, c = states
        gates = xp.add(projected, layer.product(h, r, bias))
        if usual:
            i, forget, n, o = lstm_gates(xp, layer.clipped(gates), "iofg")
            c = _cell(xp, forget, c, i, n)
            return xp.multiply(o, xp.tanh(c)), c
        f, g, last = functions[d]
        i, o, forget, n = xp.split(gates, (size,) * 4, 1)
        holes = (None,) * 3 if p is None else xp.split(layer.part(p, d), (size,) * 3, 0)

        def gated(gate: Any, hole: Any, state: Any) -> Any:
            return layer.clipped(gate if hole is None else xp.add(gate, xp.multiply(state, hole)))

        i = f(xp, gated(i, holes[0], c))
        forget = xp.subtract(1, i) if input_forget else f(xp, gated(forget, holes[2], c))
        c = _cell(xp, forget, c, i, g(xp, layer.clipped(n)))
        o = f(xp, gated(o, holes[1], c))
        return xp.multiply(o, last(xp, c)), c

    return layer.run(step, 4)
