"""The oracle of front ends: a `SourceTrace`, run step by step on a backend, words by their definitions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import optree

from tensorgraft.codegen.trace import Frame, SourceTrace, steps
from tensorgraft.codegen.words import WORDS
from tensorgraft.hub import registry
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded.block import Block, Call, Var, leaves

Env = dict[Var, Any]


def replay(trace: SourceTrace, *arguments: Any, onto: str = "numpy") -> tuple[Any, dict[str, np.ndarray]]:
    """(the result, what is written), as NumPy arrays. `arguments`: NumPy arrays for the Vars of the trace's."""
    xp = registry.get(onto)
    with xp.scope():
        env: Env = {
            v: xp.asarray(np.asarray(trace.weights[n])) for n, v in {**trace.parameters, **trace.buffers}.items()
        }
        wanted = [v for v in leaves([tree for _, tree in trace.arguments]) if type(v) is Var]
        given = optree.tree_leaves(list(arguments))
        assert len(wanted) == len(given), (len(wanted), len(given))
        for v, x in zip(wanted, given, strict=True):
            assert v.shape == x.shape, (v, x.shape)
            env[v] = xp.asarray(np.array(x, order="C").astype(v.dtype, copy=False))
        if trace.key is not None:
            env[trace.key] = xp.asarray(np.array([0, 1], np.uint32))
        run(xp, list(steps(trace.root)), env)
        return _host(xp, value(xp, trace.result, env)), _host(xp, value(xp, trace.written, env))


def run(xp: Backend, calls: list[Call], env: Env) -> None:
    for call in calls:
        args, kwargs = value(xp, call.args, env), value(xp, call.kwargs, env)
        if call.method in ("cond", "while_loop", "scan"):
            result = _control(xp, call.method, args, kwargs)
        elif call.method in WORDS:
            result = WORDS[call.method](xp, *args, **kwargs)
        else:
            result = getattr(xp, call.method)(*args, **kwargs)
        _bind(xp, call, call.results, result, env)


def _control(xp: Backend, method: str, args: Any, kwargs: Any) -> Any:
    if method == "cond":
        predicate, true, false, *operands = args
        return tuple(xp.cond(predicate, lambda: list(true(*operands)), lambda: list(false(*operands))))
    if method == "while_loop":
        test, step, state = args
        return tuple(xp.while_loop(lambda s: test(s), lambda s: list(step(tuple(s))), list(state)))
    step, carry, along = args

    def body(carry: Any, x: Any) -> Any:
        after, y = step(tuple(carry), tuple(x))
        return list(after), list(y)

    carry, ys = xp.scan(body, list(carry), list(along), **kwargs)
    return tuple(carry), tuple(ys)


def value(xp: Backend, tree: Any, env: Env) -> Any:
    if type(tree) is Var:
        if tree in env:
            return env[tree]
        assert tree.value is not None, f"{tree} is used before it is made"
        return xp.asarray(np.array(tree.value))
    if isinstance(tree, tuple):
        return tuple(value(xp, x, env) for x in tree)
    if isinstance(tree, list):
        return [value(xp, x, env) for x in tree]
    if isinstance(tree, dict):
        return {k: value(xp, x, env) for k, x in tree.items()}
    if type(tree) is Block:
        return lambda *operands: _called(xp, tree, operands, env)
    return tree


def _called(xp: Backend, block: Block, operands: Any, env: Env) -> Any:
    inner = dict(env)
    parameters = block.parameters
    if len(parameters) == 1 and isinstance(parameters[0], tuple) and len(operands) == 1:
        operands = (tuple(operands[0]),)
    for v, x in zip(leaves(list(parameters)), optree.tree_leaves(list(operands)), strict=True):
        inner[v] = x
    run(xp, block.calls, inner)
    return value(xp, block.result, inner)


def _bind(xp: Backend, call: Call, outcome: Any, result: Any, env: Env) -> None:
    if type(outcome) is Var:
        shape, dtype = tuple(xp.shape(result)), xp.dtype_of(result)
        assert (shape, dtype) == (outcome.shape, outcome.dtype), f"{call.method}: {dtype}{shape}, traced as {outcome}"
        env[outcome] = result
    elif isinstance(outcome, tuple | list):
        for o, r in zip(outcome, result, strict=True):
            _bind(xp, call, o, r, env)


def _host(xp: Backend, tree: Any) -> Any:
    return optree.tree_map(lambda x: xp.to_numpy(x) if xp.is_array(x) else x, tree)


def said(trace: SourceTrace) -> Counter[str]:
    """How often each operation and word occurs, in blocks too."""
    found: Counter[str] = Counter()

    def look(calls: Any) -> None:
        for call in calls:
            found[call.method] += 1
            for x in leaves([call.args, call.kwargs]):
                if type(x) is Block:
                    look(x.calls)

    look(steps(trace.root))
    return found


def shown(frame: Frame, indent: str = "") -> str:
    """Frames and methods, for tests of structure."""
    lines = [f"{indent}{frame.kind}({', '.join(n for n, _ in frame.arguments)})"]
    for call in frame.calls:
        lines.append(shown(call, indent + "  ") if isinstance(call, Frame) else f"{indent}  {call.method}")
    return "\n".join(lines)
