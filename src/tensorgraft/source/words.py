"""Words: what a front end may write in a `Trace` beside the operations of the hub, so that source reads as people write.

A word is a function of a backend, which says what it means in operations of the hub (a target that has no name for it
writes these), and of arrays and static values. Layouts are PyTorch's: channels first, weights (out, in). A front end adds
a word where a target's users would look for it, not for each of its operators.

    @word
    def linear(xp, x, weight, bias=None): ...

`Step("linear", (x, w), {}, y)` is a call of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Array = Any
WORDS: dict[str, Callable[..., Any]] = {}


def word(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a word: `fn(xp, *arguments)`."""
    WORDS[fn.__name__] = fn
    return fn


# ---- shapes ------------------------------------------------------------------------------------------------------------


@word
def getitem(xp: Any, x: Array, index: tuple[Any, ...]) -> Array:
    """`x[index]`: numbers, slices (of positive steps), None and Ellipsis, as in NumPy; no arrays (`gather` has these)."""
    shape = xp.shape(x)
    taken = sum(i is not None and i is not Ellipsis for i in index)
    if Ellipsis not in index:
        index = (*index, Ellipsis)
    at = index.index(Ellipsis)
    index = (*index[:at], *[slice(None)] * (len(shape) - taken), *index[at + 1 :])
    start, stop, step, new = [], [], [], []
    for i in index:
        if i is None:
            new.append(1)
            continue
        n = shape[len(start)]
        if isinstance(i, slice):
            a, b, c = i.indices(n)
            new.append(max(0, -(-(b - a) // c)))
            b = max(a, b)
        else:
            a, c = i + n if i < 0 else i, 1
            b = a + 1
        start.append(a)
        stop.append(b)
        step.append(c)
    return xp.reshape(xp.slice(x, tuple(start), tuple(stop), tuple(step)), tuple(new))


@word
def flatten(xp: Any, x: Array, start: int = 0, end: int = -1) -> Array:
    """The axes from `start` to `end`, both included, as one."""
    shape = xp.shape(x)
    start, end = start % max(len(shape), 1), end % max(len(shape), 1)
    size = 1
    for n in shape[start : end + 1]:
        size *= n
    return xp.reshape(x, (*shape[:start], size, *shape[end + 1 :]))


# ---- products ----------------------------------------------------------------------------------------------------------


@word
def linear(xp: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x (..., in) by weight (out, in), and bias (out)."""
    y = xp.matmul(x, xp.matrix_transpose(weight) if xp.ndim(weight) == 2 else weight)
    return y if bias is None else xp.add(y, bias)


@word
def conv(
    xp: Any,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: tuple[int, ...] = (1,),
    padding: tuple[tuple[int, int], ...] = ((0, 0),),
    dilation: tuple[int, ...] = (1,),
    groups: int = 1,
) -> Array:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...) and bias (O); an entry for each spatial axis."""
    n = len(stride)
    y = xp.convolution(x, weight, stride, padding, (1,) * n, dilation, groups)
    return y if bias is None else xp.add(y, xp.reshape(bias, (xp.shape(bias)[0], *[1] * n)))


@word
def einsum(xp: Any, equation: str, *operands: Array) -> Array:
    """Of one or two arrays, by letters ("bqd,bkd->bqk"); a letter stands for an axis, and occurs once in an operand."""
    inputs, out = equation.replace(" ", "").split("->")
    letters = inputs.split(",")
    if len(operands) == 1:
        gone = tuple(i for i, c in enumerate(letters[0]) if c not in out)
        x = xp.sum(operands[0], gone) if gone else operands[0]
        have = [c for c in letters[0] if c in out]
    else:
        (a, b), (p, q) = letters, operands
        p, q = (xp.sum(x, s) if (s := tuple(i for i, c in enumerate(m) if c not in n + out)) else x
                for x, m, n in ((p, a, b), (q, b, a)))  # fmt: skip
        a, b = ("".join(c for c in m if c in n + out) for m, n in ((a, b), (b, a)))
        batch = [c for c in a if c in b and c in out]
        inner = [c for c in a if c in b and c not in out]
        x = xp.dot_general(
            p,
            q,
            (tuple(map(a.index, inner)), tuple(map(b.index, inner))),
            (tuple(map(a.index, batch)), tuple(map(b.index, batch))),
        )
        have = batch + [c for c in a if c not in batch + inner] + [c for c in b if c not in batch + inner]
    order = tuple(have.index(c) for c in out)
    return x if order == tuple(range(len(out))) else xp.permute_dims(x, order)


@word
def embedding(xp: Any, weight: Array, indices: Array) -> Array:
    """Rows of weight (rows, width)."""
    return xp.gather(weight, (indices,))


# ---- normalisation -----------------------------------------------------------------------------------------------------


def _affine(xp: Any, y: Array, weight: Array | None, bias: Array | None) -> Array:
    y = y if weight is None else xp.multiply(y, weight)
    return y if bias is None else xp.add(y, bias)


@word
def layer_norm(
    xp: Any, x: Array, weight: Array | None = None, bias: Array | None = None, axes: int = 1, eps: float = 1e-5
) -> Array:
    """Over the last `axes` axes (Ba, Kiros, Hinton 2016)."""
    over = tuple(range(-axes, 0))
    centred = xp.subtract(x, xp.mean(x, over, keepdims=True))
    variance = xp.mean(xp.square(centred), over, keepdims=True)
    return _affine(xp, xp.multiply(centred, xp.rsqrt(xp.add(variance, eps))), weight, bias)


@word
def rms_norm(xp: Any, x: Array, weight: Array | None = None, axes: int = 1, eps: float = 1e-6) -> Array:
    """Over the last `axes` axes (Zhang, Sennrich 2019)."""
    mean = xp.mean(xp.square(x), tuple(range(-axes, 0)), keepdims=True)
    return _affine(xp, xp.multiply(x, xp.rsqrt(xp.add(mean, eps))), weight, None)


# ---- activations -------------------------------------------------------------------------------------------------------


@word
def relu(xp: Any, x: Array) -> Array:
    return xp.maximum(x, 0)


@word
def silu(xp: Any, x: Array) -> Array:
    return xp.multiply(x, xp.sigmoid(x))


@word
def gelu(xp: Any, x: Array, approximate: bool = False) -> Array:
    """Exact, or by tanh (Hendrycks, Gimpel 2016)."""
    if approximate:
        cubic = xp.multiply(xp.add(x, xp.multiply(xp.multiply(xp.square(x), x), 0.044715)), 0.7978845608028654)
        return xp.multiply(xp.multiply(x, 0.5), xp.add(xp.tanh(cubic), 1.0))
    return xp.multiply(xp.multiply(x, 0.5), xp.add(xp.erf(xp.multiply(x, 0.7071067811865476)), 1.0))


# ---- attention ---------------------------------------------------------------------------------------------------------


@word
def attend(
    xp: Any, q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False, scale: float | None = None
) -> Array:
    """`attention` of the hub without its second result: q (N, H, L, E), k (N, G, S, E), v (N, G, S, F)."""
    return xp.attention(q, k, v, mask, causal, scale)[0]


# ---- gradients and randomness --------------------------------------------------------------------------------------------


@word
def stop_gradient(xp: Any, x: Array) -> Array:
    return x


@word
def dropout(xp: Any, x: Array, key: Array, rate: float) -> Array:
    """Zeros in the places that `key` says, the rest divided by 1 - rate. Each framework has its own random numbers."""
    kept = xp.greater_equal(xp.uniform(key, xp.shape(x), xp.dtype_of(x)), rate)
    return xp.where(kept, xp.multiply(x, 1 / (1 - rate)), xp.zeros_like(x))
