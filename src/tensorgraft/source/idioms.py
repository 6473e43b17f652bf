"""What people have a word for, as it is written out in operations of the hub."""

from __future__ import annotations

from typing import Any

from tensorgraft.hub.recorded.block import Call, Var
from tensorgraft.source.rewriting import New, Rewriting, bound, idiom, table
from tensorgraft.source.simplifying import axes_of


def _last(m: dict[str, Any]) -> bool:
    """The axes are the last ones, of which there are m["n"]."""
    ndim = m["x"].ndim
    axes = axes_of(m["a"], ndim)
    m["n"] = len(axes)
    return axes == tuple(range(ndim - len(axes), ndim))


def _one_axis(m: dict[str, Any]) -> bool:
    axes = axes_of(m["a"], m["x"].ndim)
    m["a"] = -1 if axes == (m["x"].ndim - 1,) else axes[0]
    return len(axes) == 1


def _of_last(parameter: str) -> Any:
    def check(m: dict[str, Any]) -> bool:
        w, x = m[parameter], m["x"]
        return type(w) is Var and w.shape == x.shape[-m["n"] :]

    return check


def _is_number(m: dict[str, Any]) -> bool:
    return isinstance(m["e"], float)


_VAR = "var(x, a, True)"
_CENTRED = "subtract(x, mean(x, a, True))"
_INVERSE = ("rsqrt(add({v}, e))", "rsqrt(add(maximum({v}, 0.0), e))")
_NORMAL = [f"multiply({_CENTRED}, {i.format(v=_VAR)})" for i in _INVERSE] + [
    f"divide({_CENTRED}, sqrt(add({v}, e)))" for v in (_VAR, f"maximum({_VAR}, 0.0)")
]
_SCALED = [f"multiply({_CENTRED}, multiply({i.format(v=_VAR)}, w))" for i in _INVERSE]


def _normal(m: dict[str, Any]) -> bool:
    return _is_number(m) and _last(m)


def _normal_scaled(m: dict[str, Any]) -> bool:
    return _normal(m) and type(m["w"]) is Var and m["w"].shape == m["x"].shape[-m["n"] :]


RULES = table(
    # ---- reductions
    idiom("var(x, a, k)", "mean(square(subtract(x, mean(x, a, True))), a, k)",
          "subtract(mean(square(x), a, k), square(mean(x, a, k)))", whole=False),
    idiom("var(x, a, k)", "maximum(subtract(mean(square(x), a, k), square(mean(x, a, k))), 0.0)", whole=False),
    idiom("softmax(x, axis=a)",
          "divide((e := exp(subtract(x, max(x, a, True)))), sum(e, a, True))",
          "divide((e := exp(subtract(x, stop_gradient(max(x, a, True))))), sum(e, a, True))", when=_one_axis),
    idiom("log_softmax(x, axis=a)",
          "subtract((s := subtract(x, max(x, a, True))), log(sum(exp(s), a, True)))",
          "subtract((s := subtract(x, stop_gradient(max(x, a, True)))), log(sum(exp(s), a, True)))", when=_one_axis),
    # ---- activations
    idiom("silu(x)", "multiply(x, sigmoid(x))"),
    idiom("gelu(x, approximate=True)",
          "multiply(x, multiply(add(tanh(multiply(add(x, multiply(pow(x, 3), 0.044715)), 0.7978845608028654)), 1.0), 0.5))",
          "multiply(multiply(x, 0.5), add(tanh(multiply(add(x, multiply(pow(x, 3), 0.044715)), 0.7978845608028654)), 1.0))"),
    idiom("gelu(x)",
          "multiply(multiply(x, 0.5), erfc(multiply(negative(x), 0.7071067811865476)))",
          "multiply(multiply(x, 0.5), add(erf(multiply(x, 0.7071067811865476)), 1.0))",
          "multiply(multiply(x, 0.5), add(erf(divide(x, 1.4142135623730951)), 1.0))"),
    idiom("softplus(x)", "logaddexp(x, 0.0)"),
    idiom("square(x)", "pow(x, 2)", "multiply(x, x)"),
    # ---- normalisation
    idiom("layer_norm(x, axes=n, eps=e)", *_NORMAL, when=_normal),
    idiom("layer_norm(x, w, axes=n, eps=e)", *_SCALED, when=_normal_scaled),
    idiom("layer_norm(x, w, axes=n, eps=e)", "multiply(layer_norm(x, None, None, n, e), w)", when=_of_last("w")),
    idiom("layer_norm(x, w, b, axes=n, eps=e)", "add(layer_norm(x, w, None, n, e), b)", when=_of_last("b")),
    idiom("rms_norm(x, axes=n, eps=e)", "multiply(x, rsqrt(add(mean(square(x), a, True), e)))",
          "divide(x, sqrt(add(mean(square(x), a, True), e)))", when=_normal),
    idiom("rms_norm(x, w, axes=n, eps=e)", "multiply(x, multiply(rsqrt(add(mean(square(x), a, True), e)), w))",
          when=_normal_scaled),
    idiom("rms_norm(x, w, axes=n, eps=e)", "multiply(rms_norm(x, None, n, e), w)", when=_of_last("w")),
)  # fmt: skip


# ---- products ------------------------------------------------------------------------------------------------------------

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def product(state: Rewriting, call: Call) -> New | None:
    """`dot_general` as matmul, linear or einsum. The axes of its result: batch, free ones of a, free ones of b."""
    named = bound(call)
    a, b, contract, batch = named["a"], named["b"], named["contract"], named["batch"]
    if type(a) is not Var or type(b) is not Var or (named["dtype"] not in (None, a.dtype)):
        return None
    letters = iter(_LETTERS)
    of_a, of_b = [""] * a.ndim, [""] * b.ndim
    for i, j in zip(*batch, strict=True):
        of_a[i] = of_b[j] = next(letters)
    for i in range(a.ndim):
        if not of_a[i] and i not in contract[0]:
            of_a[i] = next(letters)
    for j in range(b.ndim):
        if not of_b[j] and j not in contract[1]:
            of_b[j] = next(letters)
    shared = [of_a[i] for i in batch[0]]
    out = shared + [x for x in of_a if x and x not in shared] + [x for x in of_b if x and x not in shared]
    for i, j in zip(*contract, strict=True):
        of_a[i] = of_b[j] = next(letters)
    return New("einsum", {"equation": f"{''.join(of_a)},{''.join(of_b)}->{''.join(out)}", "operands": (a, b)})


def einsum_moved(state: Rewriting, call: Call) -> New | None:
    """A transposed product is another product."""
    named = bound(call)
    inner = state.made_by(named["x"], "einsum")
    if inner is None or state.uses[named["x"]] != 1:
        return None
    inputs, out = inner["equation"].split("->")
    moved = "".join(out[i] for i in named["axes"])
    return New("einsum", {**inner, "equation": f"{inputs}->{moved}"})


def einsum_of_moved(state: Rewriting, call: Call) -> New | None:
    """So is a product of transposed arrays."""
    named = bound(call)
    inputs, out = named["equation"].split("->")
    letters, operands = inputs.split(","), list(named["operands"])
    changed = False
    for i, x in enumerate(operands):
        inner = state.made_by(x, "permute_dims")
        if inner is not None and state.uses[x] == 1:
            of = [""] * x.ndim
            for axis, letter in zip(inner["axes"], letters[i], strict=True):
                of[axis] = letter
            operands[i], letters[i], changed = inner["x"], "".join(of), True
    return New("einsum", {"equation": f"{','.join(letters)}->{out}", "operands": tuple(operands)}) if changed else None


def einsum_said(state: Rewriting, call: Call) -> New | None:
    """As `linear` or `matmul`, where it is one."""
    named = bound(call)
    if len(named["operands"]) != 2:
        return None
    inputs, out = named["equation"].split("->")
    (a, b), (x, y) = inputs.split(","), named["operands"]
    for a, b, x, y in ((a, b, x, y), (b, a, y, x)):
        if len(b) == 2 and len(a) >= 1 and b[0] not in a and len(set(a)) == len(a):  # (out, in) weights
            if b[1] == a[-1] and out == a[:-1] + b[0]:
                return New("linear", {"x": x, "weight": y})
        if len(b) == 2 and len(a) >= 2 and b[1] not in a and b[0] == a[-1] and out == a[:-1] + b[1]:
            return New("matmul", {"a": x, "b": y})
        if len(a) == len(b) == 1 and a == b and not out:
            return New("matmul", {"a": x, "b": y})
        if len(a) == 1 and len(b) == 2 and b[0] == a and out == b[1]:
            return New("matmul", {"a": x, "b": y})
        n = len(a) - 2
        if n >= 0 and len(b) == len(a) and a[:n] == b[:n] == out[:n] and len(out) == len(a) and a[n] == out[n]:
            if a[n + 1] == b[n] and out[n + 1] == b[n + 1] and len({a[n], a[n + 1], b[n + 1]}) == 3:
                return New("matmul", {"a": x, "b": y})
            if n and a[n + 1] == b[n + 1] and out[n + 1] == b[n] and len({a[n], a[n + 1], b[n]}) == 3:
                return New("matmul", {"a": x, "b": state.xp.matrix_transpose(y)})
    return None


def biased(state: Rewriting, call: Call) -> New | None:
    """linear(x, w) + b."""
    named = bound(call)
    for x, b in ((named["x"], named["y"]), (named["y"], named["x"])):
        inner = state.made_by(x, "linear")
        if inner is None or inner["bias"] is not None or state.uses[x] != 1 or type(b) is not Var:
            continue
        if b.shape == (inner["weight"].shape[0],) and b.dtype == x.dtype and call.outcome.shape == x.shape:
            return New("linear", {**inner, "bias": b})
    return None


RULES.setdefault("dot_general", []).append(product)
RULES.setdefault("permute_dims", []).append(einsum_moved)
RULES.setdefault("add", []).append(biased)
RULES["einsum"] = [einsum_of_moved]


def einsum_lettered(state: Rewriting, call: Call) -> New | None:
    """Letters in the order in which they come, or those that people use for attention."""
    equation = bound(call)["equation"]
    letters = dict.fromkeys(c for c in equation if c.isalpha())
    plain = "".join(dict(zip(letters, _LETTERS, strict=False)).get(c, c) for c in equation)
    known = _KNOWN.get(plain, plain)
    return None if known == equation else New("einsum", {**bound(call), "equation": known})


_OF_ATTENTION = ("qhd,khd->hqk", "hqk,khd->qhd", "hqd,hkd->hqk", "hqk,hkd->hqd", "hqd,hkd->qhk", "qhk,khd->qhd")
_KNOWN = {}
for _equation in (*_OF_ATTENTION, *(e.replace(",", ",b").replace("->", "->b").join(("b", "")) for e in _OF_ATTENTION)):
    _order = dict.fromkeys(c for c in _equation if c.isalpha())
    _KNOWN["".join(dict(zip(_order, _LETTERS, strict=False)).get(c, c) for c in _equation)] = _equation

# When nothing else applies any more
SAID = {"einsum": [einsum_said, einsum_lettered], **table(idiom("relu(x)", "maximum(x, 0.0)"))}
