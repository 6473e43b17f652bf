"""Rules that replace expressions in operations of the hub by words (`softmax`, `layer_norm`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.codegen.recorders.calls import parameters
from tensorgraft.codegen.simplification.rewriting import New, Rewriting, Rule, bound, idiom, say, table
from tensorgraft.codegen.simplification.simplifying import axes_of
from tensorgraft.hub.operations.elementwise import ELEMENTWISE
from tensorgraft.hub.recorded.block import Call, Var


def _last(m: dict[str, Any]) -> bool:
    """Return True if the matched axes are the last ones, and set m["n"] to their number."""
    ndim = m["x"].ndim
    axes = axes_of(m["a"], ndim)
    m["n"] = len(axes)
    return axes == tuple(range(ndim - len(axes), ndim))


def _one_axis(m: dict[str, Any]) -> bool:
    """Return True for a single axis, and set m["a"] to it."""
    axes = axes_of(m["a"], m["x"].ndim)
    m["a"] = -1 if axes == (m["x"].ndim - 1,) else axes[0]
    return len(axes) == 1


def _of_last(parameter: str) -> Any:
    """Return a condition: the matched `parameter` has the shape of the last m["n"] axes of x."""

    def check(m: dict[str, Any]) -> bool:
        w, x = m[parameter], m["x"]
        return type(w) is Var and w.shape == x.shape[-m["n"] :]

    return check


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _is_number(m: dict[str, Any]) -> bool:
    return isinstance(m["e"], float)


_BY_TANH = "add(tanh(multiply(add(x, multiply(pow(x, 3), 0.044715)), 0.7978845608028654)), 1.0)"
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


def _one_hot(m: dict[str, Any]) -> bool:
    return "s" not in m or tuple(m["s"]) == (*m["i"].shape, 1)


RULES = table(
    # ---- reductions
    idiom("var(x, a, k)", "mean(square(subtract(x, mean(x, a, True))), a, k)",
          "subtract(mean(square(x), a, k), square(mean(x, a, k)))", sole_use=False),
    idiom("var(x, a, k)", "maximum(subtract(mean(square(x), a, k), square(mean(x, a, k))), 0.0)", sole_use=False),
    idiom("softmax(x, axis=a)",
          "divide((e := exp(subtract(x, max(x, a, True)))), sum(e, a, True))",
          "divide((e := exp(subtract(x, stop_gradient(max(x, a, True))))), sum(e, a, True))", when=_one_axis),
    idiom("log_softmax(x, axis=a)",
          "subtract((s := subtract(x, max(x, a, True))), log(sum(exp(s), a, True)))",
          "subtract((s := subtract(x, stop_gradient(max(x, a, True)))), log(sum(exp(s), a, True)))", when=_one_axis),
    # ---- activations
    idiom("silu(x)", "multiply(x, sigmoid(x))"),
    idiom("gelu(x, approximate=True)",
          f"multiply(x, multiply({_BY_TANH}, 0.5))", f"multiply(multiply(x, 0.5), {_BY_TANH})"),
    idiom("gelu(x)",
          "multiply(multiply(x, 0.5), erfc(multiply(negative(x), 0.7071067811865476)))",
          "multiply(multiply(x, 0.5), add(erf(multiply(x, 0.7071067811865476)), 1.0))",
          "multiply(multiply(x, 0.5), add(erf(divide(x, 1.4142135623730951)), 1.0))",
          "multiply(multiply(x, add(erf(divide(x, 1.4142135623730951)), 1.0)), 0.5)",
          "multiply(x, multiply(add(erf(divide(x, 1.4142135623730951)), 1.0), 0.5))"),
    idiom("softplus(x)", "logaddexp(x, 0.0)"),
    idiom("b", "greater_equal(astype(b, t), 1)", "not_equal(astype(b, t), 0)", when=lambda m: m["b"].dtype == np.bool_,
          sole_use=False),
    idiom("one_hot(i, n, t)", "astype(equal(expand_dims(i, -1), iota(n, d)), t)",
          "astype(equal(reshape(i, s), iota(n, d)), t)",
          when=_one_hot),
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


# ---- indices ---


def wrapped_index(state: Rewriting, call: Call) -> New | None:
    """Drop the wrapping of negative indices: the indexing operation takes them as they are."""
    named = bound(call)
    inner = state.made_by(named["indices"], "where")
    if inner is None:
        return None
    less, added = state.made_by(inner["condition"], "less"), state.made_by(inner["x"], "add")
    if less is None or added is None or state.number(less["y"]) != 0 or state.number(added["y"]) is None:
        return None
    if less["x"] is inner["y"] is added["x"]:
        return New(call.method, {**named, "indices": inner["y"]})
    return None


# ---- products --------------------------------------------------------------------------------------------------------

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def product(state: Rewriting, call: Call) -> New | None:
    """Write `dot_general` as matmul, linear or einsum. The axes of its result: batch, free ones of a, free ones of
    b."""
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
    """Rewrite a transposed einsum as one einsum."""
    named = bound(call)
    inner = state.made_by(named["x"], "einsum")
    if inner is None or state.uses[named["x"]] != 1:
        return None
    inputs, out = inner["equation"].split("->")
    moved = "".join(out[i] for i in named["axes"])
    return New("einsum", {**inner, "equation": f"{inputs}->{moved}"})


def einsum_of_moved(state: Rewriting, call: Call) -> New | None:
    """Rewrite an einsum of transposed arrays as an einsum of the arrays."""
    named = bound(call)
    inputs, out = named["equation"].split("->")
    letters, operands = inputs.split(","), list(named["operands"])
    changed = False
    for i, x in enumerate(operands):
        inner = state.made_by(x, "permute_dims")
        if inner is not None:
            of = [""] * x.ndim
            for axis, letter in zip(inner["axes"], letters[i], strict=True):
                of[axis] = letter
            operands[i], letters[i], changed = inner["x"], "".join(of), True
    return New("einsum", {"equation": f"{','.join(letters)}->{out}", "operands": tuple(operands)}) if changed else None


def einsum_as_product(state: Rewriting, call: Call) -> New | None:
    """Rewrite an einsum as `linear` or `matmul` where it is one."""
    named = bound(call)
    if len(named["operands"]) != 2:
        return None
    inputs, out = named["equation"].split("->")
    (a, b), (x, y) = inputs.split(","), named["operands"]
    orders = [(a, b, x, y), (b, a, y, x)]
    if x not in state.maker and y in state.maker:
        orders.reverse()  # weights are arrays that no call has made
    for a, b, x, y in orders:
        distinct = len(set(a)) == len(a) >= 1
        if len(b) == 2 and distinct and b[0] not in a and b[1] == a[-1] and out == a[:-1] + b[0]:  # (out, in) weights
            return New("linear", {"x": x, "weight": y})
        if len(b) == 2 and len(a) >= 2 and b[1] not in a and b[0] == a[-1] and out == a[:-1] + b[1]:
            return New("matmul", {"a": x, "b": y})
        if len(a) == len(b) == 1 and a == b and not out:
            return New("matmul", {"a": x, "b": y})
        if len(a) == 1 and len(b) == 2 and b[0] == a and out == b[1]:
            return New("matmul", {"a": x, "b": y})
        if len(a) == len(b) == 2 and a[0] == b[0] and out == a[1] + b[1] and a[1] != b[1]:
            return New("matmul", {"a": state.xp.permute_dims(x, (1, 0)), "b": y})
        n = len(a) - 2
        if n >= 0 and len(b) == len(a) and a[:n] == b[:n] == out[:n] and len(out) == len(a) and a[n] == out[n]:
            if a[n + 1] == b[n] and out[n + 1] == b[n + 1] and len({a[n], a[n + 1], b[n + 1]}) == 3:
                return New("matmul", {"a": x, "b": y})
            if n and a[n + 1] == b[n + 1] and out[n + 1] == b[n] and len({a[n], a[n + 1], b[n]}) == 3:
                return New("matmul", {"a": x, "b": state.xp.matrix_transpose(y)})
    return None


def biased(state: Rewriting, call: Call) -> New | None:
    """Rewrite linear(x, w) + b to linear(x, w, b)."""
    named = bound(call)
    for x, b in ((named["x"], named["y"]), (named["y"], named["x"])):
        inner = state.made_by(x, "linear")
        if inner is None or inner["bias"] is not None or state.uses[x] != 1 or type(b) is not Var:
            continue
        if b.shape == (inner["weight"].shape[0],) and b.dtype == x.dtype and call.results.shape == x.shape:
            return New("linear", {**inner, "bias": b})
    return None


RULES.setdefault("dot_general", []).append(product)
RULES.setdefault("permute_dims", []).append(einsum_moved)


def moved_inward(state: Rewriting, call: Call) -> New | None:
    """Move a transposition of an elementwise operation on products to the products."""
    named = bound(call)
    inner = state.maker.get(named["x"]) if state.uses[named["x"]] == 1 else None
    if inner is None or inner.method not in ELEMENTWISE:
        return None
    arguments = bound(inner)
    arrays = [v for v in arguments.values() if type(v) is Var]
    if any(state.made_by(v, "einsum") is None or v.ndim != len(named["axes"]) or state.uses[v] != 1 for v in arrays):
        return None
    moved = {n: state.xp.permute_dims(v, named["axes"]) if type(v) is Var else v for n, v in arguments.items()}
    return New(inner.method, moved)


RULES.setdefault("permute_dims", []).append(moved_inward)
for _method in ("embedding", "take"):
    RULES.setdefault(_method, []).append(wrapped_index)
RULES.setdefault("add", []).append(biased)
RULES["einsum"] = [einsum_of_moved]


def einsum_lettered(state: Rewriting, call: Call) -> New | None:
    """Rename the letters of an equation: in the order of their occurrence, or as is usual for attention."""
    equation = bound(call)["equation"]
    letters = dict.fromkeys(c for c in equation if c.isalpha())
    plain = "".join(dict(zip(letters, _LETTERS, strict=False)).get(c, c) for c in equation)
    known = _KNOWN.get(plain, plain)
    operands = bound(call)["operands"]
    if known == plain and len(operands) == 2:
        inputs, out = equation.split("->")
        swapped = f"{','.join(reversed(inputs.split(',')))}->{out}"
        letters = dict.fromkeys(c for c in swapped if c.isalpha())
        other = "".join(dict(zip(letters, _LETTERS, strict=False)).get(c, c) for c in swapped)
        if other in _KNOWN:
            return New("einsum", {"equation": _KNOWN[other], "operands": tuple(reversed(operands))})
    return None if known == equation else New("einsum", {**bound(call), "equation": known})


_OF_ATTENTION = ("qhd,khd->hqk", "hqk,khd->qhd", "hqd,hkd->hqk", "hqk,hkd->hqd", "hqd,hkd->qhk", "qhk,khd->qhd")
_KNOWN = {}
for _equation in (*_OF_ATTENTION, *(e.replace(",", ",b").replace("->", "->b").join(("b", "")) for e in _OF_ATTENTION)):
    _order = dict.fromkeys(c for c in _equation if c.isalpha())
    _KNOWN["".join(dict(zip(_order, _LETTERS, strict=False)).get(c, c) for c in _equation)] = _equation

# ---- windows ---------------------------------------------------------------------------------------------------------


def channels_last(state: Rewriting, call: Call) -> New | None:
    """Replace a layer on channels first between transpositions by one on channels last, if only these remain."""
    named = bound(call)
    y, axes = named["x"], tuple(named["axes"])
    maker = state.maker.get(y) if state.uses[y] == 1 else None
    n = len(axes) - 2
    if maker is None or maker.method not in _LAST or n < 1 or axes != (0, *range(2, n + 2), 1):
        return None
    inner = bound(maker)
    x = state.made_by(inner["x"], "permute_dims")
    if x is None or tuple(x["axes"]) != (0, n + 1, *range(1, n + 1)) or inner.get("bias") is not None:
        return None
    arguments = {**inner, "x": x["x"]}
    if maker.method == "conv":
        w = state.made_by(inner["weight"], "permute_dims")
        if w is None or tuple(w["axes"]) != (n + 1, n, *range(n)):
            return None
        arguments["weight"] = w["x"]
    if len(inner["stride"]) != n or inner.get("count_padding") is False or (inner.get("dilation", (1,) * n) not in (
        None, (1,) * n) and maker.method != "conv"):  # fmt: skip
        return None
    return New(_LAST[maker.method], {p.name: arguments[p.name] for p in parameters(_LAST[maker.method])})


_LAST = {"conv": "conv_channels_last", "max_pool": "max_pool_channels_last", "avg_pool": "avg_pool_channels_last"}


def conv_biased(state: Rewriting, call: Call) -> New | None:
    named = bound(call)
    for x, b in ((named["x"], named["y"]), (named["y"], named["x"])):
        inner = state.made_by(x, "conv_channels_last")
        if inner is None or inner["bias"] is not None or state.uses[x] != 1 or type(b) is not Var:
            continue
        if b.shape == (inner["weight"].shape[-1],) and b.dtype == x.dtype:
            return New("conv_channels_last", {**inner, "bias": b})
    return None


def mean_of_windows(state: Rewriting, call: Call) -> New | None:
    """Rewrite a sum of windows divided by their size to an average pooling."""
    named = bound(call)
    x, n = named["x"], state.number(named["y"])
    inner = state.made_by(x, "reduce_window")
    if inner is None or inner["kind"] != "sum" or state.uses[x] != 1 or n is None:
        return None
    window, strides, padding = inner["window"], inner["strides"], inner["padding"]
    if n != math.prod(window) or any(d != 1 for d in inner["window_dilation"]) or x.dtype.kind not in "fV":
        return None
    axes = tuple(a for a, k in enumerate(window) if k != 1 or strides[a] != 1 or tuple(padding[a]) != (0, 0))
    order = (*(a for a in range(x.ndim) if a not in axes), *axes)
    moved = state.xp.permute_dims(inner["x"], order)
    of = [tuple(v[a] for a in axes) for v in (window, strides, padding)]
    inverse = tuple(order.index(a) for a in range(x.ndim))
    return New("permute_dims", {"x": say(state.xp, "avg_pool", moved, *of), "axes": inverse})


def grouped(state: Rewriting, call: Call) -> New | None:
    """Rewrite a layer norm over groups of channels, followed by a scale and an offset for each channel, to a group
    norm."""
    out = bound(call)
    for y, b in ((out["x"], out["y"]), (out["y"], out["x"])):
        scaled = state.made_by(y, "multiply")
        if scaled is None or state.uses[y] != 1:
            continue
        for z, w in ((scaled["x"], scaled["y"]), (scaled["y"], scaled["x"])):
            final_reshape = state.made_by(z, "reshape")
            normal = state.made_by(final_reshape["x"], "layer_norm") if final_reshape is not None else None
            before = state.made_by(normal["x"], "reshape") if normal is not None else None
            if final_reshape is None or normal is None or before is None or normal["weight"] is not None:
                continue
            x, parts = before["x"], normal["x"].shape
            weight, bias = (_of_channels(state, v, x.ndim) for v in (w, b))
            if weight is None or bias is None or x.shape != z.shape or x.ndim < 3 or normal["axes"] != len(parts) - 2:
                continue
            if parts[0] == x.shape[0] and parts[1] * parts[2] == x.shape[1] and parts[3:] == x.shape[2:]:
                arguments = {"x": x, "groups": parts[1], "weight": weight, "bias": bias, "eps": normal["eps"]}
                return New("group_norm", arguments)
    return None


def _of_channels(state: Rewriting, v: Any, ndim: int) -> Var | None:
    """Return (C) for an array (C, 1, 1), which has the spatial axes after the channels."""
    inner = state.made_by(v, "reshape", "expand_dims")
    if inner is None or inner["x"].ndim != 1 or v.shape != (inner["x"].shape[0], *[1] * (ndim - 2)):
        return None
    return inner["x"]


def pooled_unit(state: Rewriting, call: Call) -> New | None:
    """Pool an array without its additional leading axis of one element."""
    named = bound(call)
    x = named["x"]
    inner = state.made_by(x, "reshape", "expand_dims")
    if inner is None or state.uses[x] != 1 or x.ndim != inner["x"].ndim + 1:
        return None
    axis = x.ndim - len(named["window"])
    y = inner["x"]
    if x.shape[:axis].count(1) != y.shape[: axis - 1].count(1) + 1 or x.shape[axis:] != y.shape[axis - 1 :]:
        return None
    arguments = {p.name: named[p.name] for p in parameters(call.method) if p.name != "x"}
    return New("reshape", {"x": say(state.xp, call.method, y, **arguments), "shape": call.results.shape})


def unit_moved(state: Rewriting, call: Call) -> New | None:
    """Transpose an array without its additional axis of one element."""
    named = bound(call)
    x, axes = named["x"], tuple(named["axes"])
    inner = state.made_by(x, "reshape", "expand_dims")
    if inner is None or x.ndim != inner["x"].ndim + 1 or x.shape.count(1) != 1 or 1 in inner["x"].shape:
        return None
    unit = x.shape.index(1)
    if x.shape[:unit] + x.shape[unit + 1 :] != inner["x"].shape:
        return None
    rest = tuple(a - (a > unit) for a in axes if a != unit)
    moved = inner["x"] if rest == tuple(range(len(rest))) else state.xp.permute_dims(inner["x"], rest)
    return New("reshape", {"x": moved, "shape": call.results.shape})


for _method in ("max_pool", "avg_pool"):
    RULES.setdefault(_method, []).append(pooled_unit)
RULES["permute_dims"] += [unit_moved, channels_last]
RULES["divide"].append(mean_of_windows)
RULES["add"] += [conv_biased, grouped]

# rules for the result of the ones above, once none of those applies any more
SECOND_PASS: dict[str, list[Rule]] = {"einsum": [einsum_as_product, einsum_lettered], **table(
    idiom("relu(x)", "maximum(x, 0.0)"),
    idiom("clip(x, low=l, high=h)", "minimum(maximum(x, l), h)", "minimum(maximum(l, x), h)",
          when=lambda m: _are_numbers(m["l"], m["h"])),
)}  # fmt: skip
