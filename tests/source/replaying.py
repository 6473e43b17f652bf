"""A `Trace` computed as it stands: hub operations by a backend, words by what they mean. The oracle of front ends, which
needs no target."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.hub import registry
from tensorgraft.hub.recorded.block import Block, Var, leaves
from tensorgraft.source.trace import Frame, Trace
from tensorgraft.source.words import WORDS


class Replay:
    def __init__(self, backend: str = "numpy") -> None:
        self.xp = registry.get(backend)
        self.env: dict[Var, Any] = {}

    def value(self, x: Any) -> Any:
        if type(x) is Var:
            if x.value is not None:
                return self.xp.asarray(x.value)
            return self.env[x]
        if isinstance(x, tuple | list):
            return type(x)(map(self.value, x))
        if isinstance(x, dict):
            return {k: self.value(v) for k, v in x.items()}
        return self.function(x) if isinstance(x, Block) else x

    def bind(self, tree: Any, values: Any) -> None:
        flat = list(leaves(values))
        for v, value in zip(leaves(tree), flat, strict=True):
            if type(v) is Var:
                assert tuple(self.xp.shape(value)) == v.shape, (v, self.xp.shape(value))
                assert self.xp.dtype_of(value) == v.dtype, (v, self.xp.dtype_of(value))
                self.env[v] = value

    def function(self, block: Block) -> Any:
        def call(*args: Any) -> Any:
            self.bind(block.parameters, args)
            self.run(block.calls)
            return self.value(block.result)

        return call

    def run(self, calls: list[Any]) -> None:
        for call in calls:
            if isinstance(call, Frame):
                self.run(call.calls)
            else:
                self.step(call)

    def step(self, call: Any) -> None:
        args, kwargs = self.value(call.args), self.value(call.kwargs)
        xp = self.xp
        try:
            if call.method == "scan":
                body, init, xs = args
                out = xp.scan(body, init, xs, **kwargs)
            elif call.method == "while_loop":
                test, body, init = args
                out = xp.while_loop(lambda c: test(*c), lambda c: body(*c), init)
            elif call.method in WORDS:
                out = WORDS[call.method](xp, *args, **kwargs)
            else:
                out = getattr(xp, call.method)(*args, **kwargs)
            self.bind(call.outcome, out)
        except Exception as error:
            error.add_note(f"{call.outcome} = {call.method}{call.args} {call.kwargs} at {call.place}")
            raise


def replay(trace: Trace, arguments: dict[str, Any], key: Any = (0, 0), backend: str = "numpy") -> tuple[Any, dict[str, Any]]:
    """(results, what is written by path) for arguments by name (trees of NumPy arrays as the trace's own)."""
    run = Replay(backend)
    xp = run.xp
    with xp.scope():
        for name, v in {**trace.parameters, **trace.buffers}.items():
            run.env[v] = xp.asarray(trace.weights[name])
        for name, tree in trace.arguments:
            _bind(run, tree, arguments[name])
        if trace.key is not None:
            run.env[trace.key] = xp.asarray(np.array(key, np.uint32))
        run.run(trace.root.calls)
        return _plain(xp, run.value(trace.result)), {name: xp.to_numpy(run.value(v)) for name, v in trace.written.items()}


def _bind(run: Replay, tree: Any, value: Any) -> None:
    if type(tree) is Var:
        run.env[tree] = run.xp.asarray(np.asarray(value))
    elif isinstance(tree, dict):
        for k, v in tree.items():
            _bind(run, v, value[k])
    elif isinstance(tree, tuple | list):
        for t, v in zip(tree, value, strict=True):
            _bind(run, t, v)


def _plain(xp: Any, tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _plain(xp, v) for k, v in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(_plain(xp, v) for v in tree)
    return xp.to_numpy(tree) if xp.is_array(tree) else tree
