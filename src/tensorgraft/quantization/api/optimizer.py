"""`adam8bit`: Adam on moments of one byte a number, as a pure function of pytrees in the style of Optax.

Built on `quantization.moments`; nothing of the core imports it.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import optree

from tensorgraft.arrays import framework_of, is_inexact_array
from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization import moments


class GradientTransformation(NamedTuple):
    """`init(params) -> state` and `update(updates, state, params) -> (updates, state)`, as Optax has it."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class Moment(NamedTuple):
    """A moment in bytes: uint8 codes (blocks, 256) and float32 scales (blocks, 1)."""

    codes: Array
    scale: Array


class Adam8bitState(NamedTuple):
    """`count`: int32 (), the steps so far. `mu`, `nu`: trees like the parameters, of the first moments and of the roots
    of the second ones (of small parameters, which are not kept in bytes, of the second ones themselves)."""

    count: Array  # type: ignore[assignment]  # named like the method of tuples
    mu: Any
    nu: Any


def adam8bit(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    weight_decay: float = 0.0,
    smallest: int = moments.SMALLEST,
    seed: int = 0,
) -> GradientTransformation:
    """Adam, and AdamW, with both moments in 8 bits: about a quarter of the memory of `optax.adam`'s state, and the
    numbers of `tg.quantization.Adam8bit` (see there, and `tensorgraft.quantization.moments`).

    For pytrees of `tensorgraft.array_api` arrays on one device (a `tg.Module`), and of native arrays: those of JAX make
    it a transformation that `optax.chain` takes. Eager, in `tg.jit` and in `jax.jit`; the state is a pytree of arrays.

    Arguments:
        learning_rate: a number, an array (), or a schedule: a function of the number of previous steps, int32 ().
        b1, b2, eps: as `optax.adam` takes them.
        weight_decay: as `optax.adamw` takes it; `update` needs the parameters then.
        smallest: arrays of fewer elements have moments in float32 (float64 arrays in float64).
        seed: the seed of the roundings; the same one gives the same numbers.

    Returns `(init, update)`. Leaves of the parameters that are no floating-point arrays have no state, and None for an
    update.

    Raises ValueError for numbers out of range; `update` raises ValueError for updates that are not like the parameters
    of `init`.
    """
    for name, value in (("eps", eps), ("weight_decay", weight_decay)):
        if not value >= 0.0:
            raise ValueError(f"adam8bit: expected {name} of at least 0, got {value}")
    for name, value in (("b1", b1), ("b2", b2)):
        if not 0.0 <= value < 1.0:
            raise ValueError(f"adam8bit: expected {name} of at least 0 and less than 1, got {value}")
    if isinstance(learning_rate, float | int) and not learning_rate >= 0.0:
        raise ValueError(f"adam8bit: expected learning_rate of at least 0, got {learning_rate}")
    settings = moments.Settings(float(b1), float(b2), float(eps), float(weight_decay))
    rule = _Adam8bit(learning_rate, settings, operator.index(smallest), operator.index(seed))
    return GradientTransformation(rule.init, rule.update)


class _Adam8bit:
    """The two functions of a gradient transformation."""

    def __init__(self, learning_rate: Any, settings: moments.Settings, smallest: int, seed: int) -> None:
        self._learning_rate, self._settings, self._smallest, self._seed = learning_rate, settings, smallest, seed

    def init(self, params: Any) -> Adam8bitState:
        leaves, structure = _flatten(params)
        inexact = [x for x in leaves if _is_floating(x)]
        if not inexact:
            raise ValueError("adam8bit: there is no floating-point array among the parameters")
        placement = _Framework(inexact)
        mu: list[Any] = []
        nu: list[Any] = []
        with placement.backend.scope():
            for x in leaves:
                if not _is_floating(x):
                    mu.append(None)
                    nu.append(None)
                    continue
                value = placement.value(x)
                shape, dtype = placement.backend.shape(value), placement.backend.dtype_of(value)
                slots = [placement.array(a) for a in moments.empty(placement.backend, shape, dtype, self._smallest)]
                mu.append(slots[0] if len(slots) == 2 else Moment(*slots[:2]))
                nu.append(slots[1] if len(slots) == 2 else Moment(*slots[2:]))
            count = placement.array(placement.backend.zeros((), dtypes.int32))
        return Adam8bitState(count, structure.unflatten(mu), structure.unflatten(nu))

    def update(self, updates: Any, state: Adam8bitState, params: Any = None) -> tuple[Any, Adam8bitState]:
        leaves, structure = _flatten(updates)
        decays = bool(self._settings.weight_decay)
        if decays and params is None:
            raise ValueError("adam8bit: weight decay requires the parameters: call update(updates, state, params)")
        mu, nu = (_as_in(structure, tree) for tree in (state.mu, state.nu))
        weights = _as_in(structure, params) if decays else [None] * len(leaves)
        for g, m in zip(leaves, mu, strict=True):
            _check(g, m)
        rate = self._learning_rate(state.count) if callable(self._learning_rate) else self._learning_rate
        states = [
            [y for x in pair for y in (x if isinstance(x, Moment) else (x,))] for pair in zip(mu, nu, strict=True)
        ]
        operands = [*leaves, *(w for w in weights if w is not None), *(x for own in states for x in own), state.count]
        traced_rate = not isinstance(rate, float | int)
        if traced_rate and framework_of(rate) in (None, "numpy") and framework_of(state.count) != "numpy":
            rate, traced_rate = float(rate), False
        placement = _Framework([*operands, rate] if traced_rate else operands)
        run = _program(placement.backend, self._settings, tuple(map(len, states)), decays, self._seed)
        with placement.backend.scope():
            values = [*map(placement.value, operands), placement.value(rate) if traced_rate else float(rate)]
            outputs = [placement.array(a) for a in run(*values)]
        changes, count, rest = outputs[: len(leaves)], outputs[len(leaves)], iter(outputs[len(leaves) + 1 :])
        new: tuple[list[Any], list[Any]] = ([], [])
        for m in mu:
            for side in new:
                side.append(Moment(next(rest), next(rest)) if isinstance(m, Moment) else next(rest))
        state = Adam8bitState(count, structure.unflatten(new[0]), structure.unflatten(new[1]))
        return structure.unflatten(changes), state


@functools.lru_cache(maxsize=64)
def _program(
    xp: Backend, settings: moments.Settings, moment_counts: tuple[int, ...], decays: bool, seed: int
) -> Callable[..., tuple[Array, ...]]:
    """A step of all parameters, compiled where the backend compiles: of their gradients, themselves if they decay, the
    moments that belong to each, the steps so far and the learning rate."""

    def step(*flat: Array) -> tuple[Array, ...]:
        remaining, n = iter(flat), len(moment_counts)
        grads = [next(remaining) for _ in range(n)]
        weights = [next(remaining) if decays else None for _ in range(n)]
        moments_of = [[next(remaining) for _ in range(m)] for m in moment_counts]
        count, rate = xp.add(next(remaining), 1), next(remaining)
        changes: list[Array] = []
        new: list[Array] = []
        for i, (g, w, own_moments) in enumerate(zip(grads, weights, moments_of, strict=True)):
            phases = (moments.phase(seed, i, 0), moments.phase(seed, i, 1))
            change, moved = moments.step(xp, g, w, own_moments, count, rate, settings, phases)
            changes.append(xp.astype(change, xp.dtype_of(g)))
            new.extend(moved)
        return (*changes, count, *new)

    compiled = xp.compile(step)

    def run(*flat: Array) -> tuple[Array, ...]:
        return (step if any(xp.is_array(x) and xp.is_traced(x) for x in flat) else compiled)(*flat)

    return run


# ---- arrays and trees of any kind ------------------------------------------------------------------------------------


class _Framework:
    """The backend for arrays of one framework, and the conversions of these to its arrays and back."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        frameworks = dict.fromkeys(map(framework_of, arrays))
        if len(frameworks) != 1:
            raise TypeError(f"adam8bit: expected arrays of one framework, got {', '.join(map(str, frameworks))}")
        (name,) = frameworks
        self.ours = name == "tensorgraft"
        if self.ours:
            from tensorgraft.frontends.array_api.core import calls

            self.backend = calls.backend_of("adam8bit", *arrays)
            if self.backend.compound:
                raise TypeError("adam8bit: quantised arrays cannot be trained: train dense ones, see prepare_qat_")
            self._new_array = calls.new_array
            return
        where = str(name)
        if name == "torch":
            device = arrays[0].device
            if device.type == "graft":
                raise TypeError("adam8bit: for tensors on tg.device(...) use tg.quantization.Adam8bit")
            where = "torch" if device.type == "cpu" else f"torch:{device.type}:{device.index or 0}"
        self.backend = registry.get(where)

    def value(self, x: Any) -> Array:
        return x._value() if self.ours else x

    def array(self, value: Array) -> Any:
        return self._new_array(value, self.backend) if self.ours else value


def _is_floating(x: Any) -> bool:
    if not is_inexact_array(x):
        return False
    if "complex" in str(x.dtype):
        raise TypeError(f"adam8bit: expected real parameters, got {x.dtype} of shape {tuple(x.shape)}")
    return True


def _flatten(tree: Any) -> tuple[list[Any], Any]:
    """Flatten by JAX's rules where there are arrays of JAX in the tree: classes may be registered there alone."""
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "tree"):
        leaves, structure = jax.tree.flatten(tree)
        if any(isinstance(x, jax.Array) for x in leaves):
            return leaves, structure
    flat, spec = optree.tree_flatten(tree)
    return list(flat), spec


def _as_in(structure: Any, tree: Any) -> list[Any]:
    try:
        return list(structure.flatten_up_to(tree))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"adam8bit: the updates do not have the structure of the parameters given to init: {error}"
        ) from None


def _check(g: Any, moment: Any) -> None:
    """Raise ValueError if a gradient does not have the shape of its first moment."""
    shape = tuple(g.shape) if hasattr(g, "shape") else None
    if isinstance(moment, Moment) and shape is not None:
        size = functools.reduce(operator.mul, shape, 1)
        if -(-size // moments.BLOCK) == moment.codes.shape[0]:
            return
    elif moment is not None and shape == tuple(moment.shape):
        return
    expected = "none" if moment is None else f"{Moment.__name__ if isinstance(moment, Moment) else tuple(moment.shape)}"
    raise ValueError(
        f"adam8bit: an update of shape {shape} does not match its moments ({expected}): call init with its parameters"
    )
