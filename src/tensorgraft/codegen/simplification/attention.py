"""Rules that write the decomposed attention of exporters as one operation."""

from __future__ import annotations

import math
from typing import Any

from tensorgraft.codegen.simplification.rewriting import New, Rewriting, Rule, bound
from tensorgraft.hub.recorded.block import Call, Var

_NOTE = "what is not a number in attention's scores stays so, where the program has zero"


def attention(state: Rewriting, call: Call) -> New | None:
    """Rewrite softmax(scale q k^T + mask) v, whose rows are zero where every key is masked; without a mask, if q and k
    are scaled alike, as exporters do."""
    named = bound(call)
    v, plain = named["b"], state.made_by(named["a"], "softmax")
    scores = plain["x"] if plain is not None else _guarded_scores(state, named["a"])
    if type(v) is not Var or type(scores) is not Var or v.ndim != 4 or scores.ndim != 4:
        return None
    if plain is not None and plain["axis"] not in (-1, 3):
        return None
    added = state.made_by(scores, "add")
    for total, mask in ((added["x"], added["y"]), (added["y"], added["x"])) if added else ((scores, None),):
        product = state.made_by(total, "matmul")
        if product is None or total.shape != scores.shape:
            continue
        (q, of_q), (k, of_k) = (_scaled(state, product[n]) for n in ("a", "b"))
        if q.ndim != 4 or k.ndim != 4 or (plain is not None and (mask is not None or of_q != of_k or of_q == 1)):
            continue
        if not q.shape[:2] == k.shape[:2] == v.shape[:2] or not q.dtype == k.dtype == v.dtype:
            continue
        scale = of_q * of_k
        is_usual = math.isclose(scale, q.shape[3] ** -0.5, rel_tol=1e-5)
        note = getattr(state.xp, "note", None)
        if note is not None and plain is None:
            note(_NOTE)
        key = state.xp.permute_dims(k, (0, 1, 3, 2))
        arguments = {"q": q, "k": key, "v": v, "mask": _visible(state, mask), "causal": False}
        return New("dot_product_attention", {**arguments, "scale": None if is_usual else scale})
    return None


def _guarded_scores(state: Rewriting, x: Any) -> Any:
    """Return the scores of a softmax whose entries that are not numbers are replaced by zero."""
    replaced = state.made_by(x, "where")
    nan = state.made_by(replaced["condition"], "isnan") if replaced is not None else None
    if replaced is None or nan is None or nan["x"] is not replaced["y"] or state.number(replaced["x"]) != 0:
        return None
    return _masked_softmax(state, replaced["y"])


def _masked_softmax(state: Rewriting, x: Any) -> Any:
    """Return the scores of a softmax in which rows of -inf alone are not numbers; None if `x` is anything else."""
    outer = state.made_by(x, "where")
    inner = state.made_by(outer["y"], "softmax") if outer is not None else None
    known = state.made_by(inner["x"], "where") if inner is not None else None
    if outer is None or inner is None or known is None or known["condition"] is not outer["condition"]:
        return None
    scores, rows = known["y"], state.made_by(outer["condition"], "equal")
    greatest = state.made_by(rows["x"], "max") if rows is not None else None
    is_row = rows is not None and greatest is not None and state.number(rows["y"]) == -math.inf
    is_last = inner["axis"] in (-1, x.ndim - 1) and greatest is not None and greatest["axis"] in (-1, (-1,), x.ndim - 1)
    return scores if is_row and is_last and greatest["x"] is scores else None  # type: ignore[index]


def _scaled(state: Rewriting, x: Any) -> tuple[Any, float]:
    """Return an array and the number that it is multiplied by."""
    named = state.made_by(x, "multiply")
    number = state.number(named["y"]) if named is not None else None
    return (named["x"], float(number)) if named is not None and isinstance(number, int | float) else (x, 1.0)


def _visible(state: Rewriting, mask: Any) -> Any:
    """Return a mask of booleans for one of 0 and -inf."""
    named = state.made_by(mask, "where")
    if named is None or state.number(named["x"]) != 0 or state.number(named["y"]) != -math.inf:
        return mask
    return named["condition"] if named["condition"].shape == mask.shape else mask


RULES: dict[str, list[Rule]] = {"matmul": [attention]}
