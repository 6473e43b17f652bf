"""Words that targets write as calls of helpers, whose parameters are the words' own."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

from tensorgraft.codegen import expressions
from tensorgraft.codegen.targets import Rule, Var, Writing, rules
from tensorgraft.codegen.words import WORDS

HELPED = (
    "max_pool", "avg_pool", "layer_norm", "rms_norm", "group_norm", "batch_norm", "batch_norm_training",
    "cross_entropy", "lstm", "gru", "rnn",
)  # fmt: skip


def helpers(names: tuple[str, ...] = HELPED) -> dict[str, Rule]:
    """Calls of the helper of a word's name, with what is not its default."""
    return {
        **{name: called(name, name) for name in names},
        "attend": called("attend", "dot_product_attention"),
        "attention_weights": called("attention_weights", "attention_weights"),
        "conv": conv,
        "conv_transpose": conv_transpose,
        "dropout": "dropout(x, key, rate)",
        "resize": resize,
    }


def called(word: str, helper: str) -> Rule:
    parameters = list(inspect.signature(WORDS[word]).parameters.values())[1:]

    def rule(w: Writing, **arguments: Any) -> ast.expr:
        positional, keywords, skipped = [], {}, False
        for p in parameters:
            value = arguments[p.name]
            if p.default is not p.empty and usual(value, p.default):
                skipped = True
            elif skipped or (p.default is not p.empty and not isinstance(value, Var | ast.expr)):
                keywords[p.name] = w(value)
            else:
                positional.append(w(value))
        return expressions.call(helper, *positional, **keywords)

    return rule


def usual(value: Any, default: Any) -> bool:
    """Return True for the default value of a helper. A default tuple, as of padding, has one entry that stands for
    every axis."""
    if isinstance(default, tuple) and isinstance(value, tuple):
        return all(rules.same(v, default[0]) for v in value)
    return not isinstance(value, Var | ast.expr) and type(value) is type(default) and rules.same(value, default)


def short(values: Any, default: Any) -> Any:
    """Return (2, 2) as 2, ((1, 1), (1, 1)) as 1, and None for the default."""
    each = tuple(v[0] if isinstance(v, tuple) and rules.same(v[0], v[1]) else v for v in values)
    if all(not isinstance(v, tuple) and rules.same(v, default) for v in each):
        return None
    return each[0] if all(rules.same(v, each[0]) for v in each) and not isinstance(each[0], tuple) else each


def conv(
    w: Writing, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = ((0, 0),),
    dilation: Any = (1,), groups: int = 1,
) -> ast.expr:  # fmt: skip
    return _with_bias(w, "conv", x, weight, bias, stride=short(stride, 1), padding=short(padding, 0),
                      dilation=short(dilation, 1), groups=None if groups == 1 else groups)  # fmt: skip


def conv_channels_last(
    w: Writing, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = ((0, 0),),
    dilation: Any = (1,), groups: int = 1,
) -> ast.expr:  # fmt: skip
    return _with_bias(w, "conv_channels_last", x, weight, bias, stride=short(stride, 1), padding=short(padding, 0),
                      dilation=short(dilation, 1), groups=None if groups == 1 else groups)  # fmt: skip


def conv_transpose(
    w: Writing, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = (0,),
    output_padding: Any = (0,), dilation: Any = (1,), groups: int = 1,
) -> ast.expr:  # fmt: skip
    return _with_bias(w, "conv_transpose", x, weight, bias, stride=short(stride, 1), padding=short(padding, 0),
                      output_padding=short(output_padding, 0), dilation=short(dilation, 1),
                      groups=None if groups == 1 else groups)  # fmt: skip


def _with_bias(w: Writing, helper: str, x: Any, weight: Any, bias: Any, **options: Any) -> ast.expr:
    operands = [w(x), w(weight)] + ([] if bias is None else [w(bias)])
    return expressions.call(helper, *operands, **{k: None if v is None else w(v) for k, v in options.items()})


def resize(w: Writing, x: Any, size: Any, method: str = "nearest", corners: bool = False) -> ast.expr:
    operands = [w(x), w(tuple(size))] + ([] if method == "nearest" else [w(method)])
    return expressions.call("resize", *operands, corners=w(True) if corners else None)


def arange(name: str) -> Callable[..., ast.expr]:
    """Write `name(stop)`, `name(start, stop)` or `name(start, stop, step)`; of ints these make int64."""

    def rule(w: Writing, start: Any, stop: Any, step: Any, dtype: Any) -> ast.expr:
        numbers = [stop] if rules.same(step, 1) and rules.same(start, 0) else [start, stop]
        numbers = [start, stop, step] if not rules.same(step, 1) else numbers
        plain = dtype.name == "int64" and all(isinstance(n, int) for n in numbers)
        return expressions.call(name, *map(w, numbers), dtype=None if plain else w(dtype))

    return rule


def einsum(name: str) -> Callable[..., ast.expr]:
    return lambda w, equation, operands: expressions.call(name, w(equation), *map(w, operands))


def index_of(indices: Any) -> list[Any]:
    return [slice(None) if i is None else i for i in indices]


def index(w: Writing, x: Var, indices: Any) -> ast.expr:
    return rules.indexed(w, x, index_of(indices))
