"""A trace for a target whose modules hold their state and whose random numbers come from a generator."""

from __future__ import annotations

from typing import Any

from tensorgraft.codegen.recorders.calls import NotExpressibleError
from tensorgraft.codegen.trace import Block, Frame, SourceStep, SourceTrace, Var, outputs_of, steps, variables

RANDOM = frozenset(
    {"uniform", "normal", "randint", "permutation", "exponential", "dropout", "cond", "while_loop", "scan"}
)


def without_keys(trace: SourceTrace, only_method: str = "") -> None:
    """Take random numbers from a generator of the framework: operations get None for a key. `only_method`: the one
    operation that can; a trace with other random ones stays as it is."""
    if trace.key is None:
        return
    if only_method and not {s.method for s in steps(trace.root)}.isdisjoint(RANDOM - {only_method}):
        return
    keys = {trace.key}

    def clean(tree: Any) -> Any:
        if isinstance(tree, Var):
            return None if tree in keys else tree
        if isinstance(tree, tuple | list):
            return type(tree)([clean(x) for x in tree])
        if isinstance(tree, dict):
            return {k: clean(x) for k, x in tree.items()}
        if isinstance(tree, Block) and not keys.isdisjoint(variables(tree)):
            raise NotExpressibleError(
                "random numbers in the body of a loop, whose key is carried, cannot be written as source"
            )
        return tree

    def walk(frame: Frame) -> None:
        calls: list[SourceStep | Frame] = []
        for call in frame.calls:
            if isinstance(call, Frame):
                walk(call)
            elif call.method in ("split_key", "fold_in") and not keys.isdisjoint(variables(call.args)):
                keys.update(variables(call.results))
                continue
            else:
                call.args, call.kwargs = clean(call.args), clean(call.kwargs)
            calls.append(call)
        frame.calls = calls
        frame.arguments = [(name, clean(tree)) for name, tree in frame.arguments]
        frame.result = clean(frame.result)
        frame.left = tuple(v for v in frame.left if v not in keys)

    walk(trace.root)
    trace.arguments = [(name, tree) for name, tree in trace.arguments if tree is not trace.key]
    trace.key = None


def with_assignments(trace: SourceTrace) -> None:
    """State is written where it is: a step "assign" (the parameter or buffer, its new value) ends the module's call."""
    owned = {**trace.parameters, **trace.buffers}
    chains: dict[Var, tuple[Frame, ...]] = {}
    last_use: dict[Var, int] = {}
    ends: dict[Frame, int] = {}
    clock = 0

    def walk(frame: Frame, chain: tuple[Frame, ...]) -> None:
        nonlocal clock
        for call in frame.calls:
            clock += 1
            if isinstance(call, Frame):
                walk(call, (*chain, call))
                continue
            for v in variables([call.args, call.kwargs]):
                last_use[v] = clock
            for v in outputs_of(call):
                chains[v] = chain
        ends[frame] = clock

    walk(trace.root, (trace.root,))
    returned = set(variables(trace.result))
    for path, new in trace.written.items():
        old = owned[path]
        if new is old:
            continue
        parts = path.split(".")
        chain = chains.get(new, (trace.root,))
        inner = [f for f in chain if f.is_module and f.path and parts[: f.path.count(".") + 1] == f.path.split(".")]
        owner = inner[-1] if inner else trace.root
        if old in returned or last_use.get(old, 0) > ends[owner]:
            raise NotExpressibleError(f"{path} is written in place, but its old value is used afterwards")
        owner.calls.append(SourceStep("assign", (old, new), {}, (), (parts[-1],), owner.place))
    trace.written = {}
