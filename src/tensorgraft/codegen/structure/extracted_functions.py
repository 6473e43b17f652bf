"""The functions of a trace: which frames become functions, their parameters and results, and which frames share one."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tensorgraft.codegen.structure.frame_equality import SourceBody
from tensorgraft.codegen.structure.functions import Invoke, ModuleRules, Path, SourceFunction, snake
from tensorgraft.codegen.structure.repeats import fold
from tensorgraft.codegen.structure.size_merging import Merger
from tensorgraft.codegen.structure.varying_numbers import extract_numbers
from tensorgraft.codegen.trace import (
    Frame,
    HubName,
    SourceStep,
    SourceTrace,
    Tree,
    Var,
    changed,
    frames,
    outputs_of,
    prune,
    steps,
    variables,
)

CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "Identity"})


def functions_of(
    trace: SourceTrace,
    trace_count: int,
    modules: ModuleRules | None = None,
    used_names: Collection[str] = (),
    exact_methods: Collection[str] = (),
) -> list[SourceFunction]:
    """Return the functions of a trace merged from `trace_count` traces, callees before callers; the last one is the
    program. None has a name of `used_names`. `modules`: for styles that write classes. `exact_methods`: operations
    whose numbers are the same in all calls of a function."""
    return _Builder(trace, trace_count, modules, used_names, exact_methods).build()


class _Builder:
    def __init__(
        self,
        trace: SourceTrace,
        trace_count: int,
        modules: ModuleRules | None,
        used_names: Collection[str],
        exact_methods: Collection[str],
    ) -> None:
        self.trace, self.trace_count, self.modules = trace, trace_count, modules
        self.paths: dict[Var, list[Path]] = defaultdict(list)
        owned = {**trace.parameters, **trace.buffers}
        for path, v in owned.items():
            self.paths[v].append(tuple(path.split(".")))
        if modules is not None and modules.ties:
            for path, canonical in trace.aliases.items():
                self.paths[owned[canonical]].append(tuple(path.split(".")))
        # otherwise a tied parameter is at the first of its paths alone, so that it has one derivative
        self.buffers = set(trace.buffers.values())
        self.functions: list[SourceFunction] = []
        self.names = set(used_names)
        self.apart = exact_methods

    def build(self) -> list[SourceFunction]:
        root = self.trace.root
        prune(self.trace)
        self.hints = {v: path.rsplit(".", 1)[-1] for path, v in self.trace.written.items()}
        if self.modules is not None:
            self.modules.examine(self.trace, self.paths)
            self.hints |= {s.args[1]: s.names[0] for s in steps(root) if s.method == "assign"}
        counts = Counter(f.kind for f in frames(root))
        self.kinds = {snake(f.kind) for f in frames(root) if not isinstance(f.kind, HubName)}
        self.splice(root, (), counts)
        prune(self.trace)
        self.hint(root)
        self.flow(root)
        levels: dict[int, list[Frame]] = defaultdict(list)
        _height(root, levels)
        self.invokes: dict[Frame, Invoke] = {}
        for level in sorted(levels):
            groups: dict[Any, list[SourceBody]] = {}
            for frame in levels[level]:
                body = self.body(frame)
                groups.setdefault(body.key(self.apart), []).append(body)
            for bodies in groups.values():
                self.functions.append(self.function(bodies))
        for function in self.functions:
            fold(function)
        return self.functions

    # ---- which frames are functions --------------------------------------------------------------------------------

    def splice(self, frame: Frame, path: Path, counts: Counter[str]) -> None:
        """Put the calls of frames that are not worth a function into those around them."""
        calls: list[SourceStep | Frame] = []
        for call in frame.calls:
            if isinstance(call, Frame):
                call_path = tuple(call.path.split(".")) if call.path else ()
                below = path if not call.is_module else call_path
                self.splice(call, below, counts)
                self.absorb(call)
                if not self.worthy(call, call_path, path, counts):
                    if call.calls and call.names and not any(call.calls[-1].names):
                        call.calls[-1].names = call.names
                    calls += call.calls
                    continue
            calls.append(call)
        frame.calls = calls

    def absorb(self, frame: Frame) -> None:
        """Give a module that only calls one function the steps of that function."""
        inner = frame.calls[0] if len(frame.calls) == 1 else None
        if frame.is_module and isinstance(inner, Frame) and not inner.is_module:
            frame.calls = inner.calls

    def worthy(self, frame: Frame, call_path: Path, outer_path: Path, counts: Counter[str]) -> bool:
        if not frame.calls:
            return False
        if frame.is_module and call_path[: len(outer_path)] != outer_path:
            return False  # a module that is held elsewhere: its parameters are arguments
        keep = None if self.modules is None else self.modules.keeps(frame)
        if keep is not None:
            return keep
        if frame.kind in CONTAINERS and frame.is_module:
            return False
        if len(frame.calls) > 1:
            return True
        if isinstance(frame.calls[0], Frame):
            return False
        parameters = {v for s in steps(frame) for v in variables([s.args, s.kwargs]) if v in self.paths}
        if any(self.owned(v, call_path) is None for v in parameters):
            return False
        return frame.is_module and len(parameters) > 1 and counts[frame.kind] > 1

    # ---- what goes in and out --------------------------------------------------------------------------------------

    def hint(self, frame: Frame) -> None:
        """State that is written has the name of the buffer."""
        for step in steps(frame):
            arrays = list(variables(step.results))
            if any(v in self.hints for v in arrays):
                names = [*step.names, *[""] * (len(arrays) - len(step.names))]
                step.names = tuple(n or self.hints.get(v, "") for n, v in zip(names, arrays, strict=True))

    def flow(self, root: Frame) -> None:
        """Return the `inputs` (arrays made outside and used inside) and `outputs` (made inside and used outside) of
        each frame."""
        self.inputs: dict[Frame, dict[Var, None]] = defaultdict(dict)
        self.outputs: dict[Frame, dict[Var, None]] = defaultdict(dict)
        where: dict[Var, tuple[Frame, ...]] = {}

        def use(v: Var, chain: tuple[Frame, ...]) -> None:
            sources = where.get(v, ())
            for f in chain:
                if f not in sources:
                    self.inputs[f][v] = None
            for f in sources:
                if f not in chain:
                    self.outputs[f][v] = None

        def walk(frame: Frame, chain: tuple[Frame, ...]) -> None:
            for call in frame.calls:
                if isinstance(call, Frame):
                    walk(call, (*chain, call))
                else:
                    for v in variables([call.args, call.kwargs]):
                        use(v, chain)
                    for v in outputs_of(call):
                        where[v] = chain

        walk(root, (root,))
        for v in [*variables(self.trace.result), *variables(self.trace.written)]:
            use(v, (root,))
        for v in variables([tree for _, tree in self.trace.arguments]):  # also those that are not used
            self.inputs[root][v] = None
        if self.trace.written:
            for v in self.trace.buffers.values():  # the new state has all of them
                self.inputs[root].setdefault(v, None)
        for frame in list(self.outputs):
            order = {v: i for i, v in enumerate(variables(frame.result))}
            ranked = sorted(self.outputs[frame], key=lambda v: order.get(v, len(order)))
            self.outputs[frame] = dict.fromkeys(ranked)

    def body(self, frame: Frame) -> SourceBody:
        path = tuple(frame.path.split(".")) if frame.path else ()
        parameters: dict[Var, Path] = {}
        inputs: list[Var] = []
        for v in self.inputs[frame]:
            if v.value is not None:
                continue
            parameter_path = self.owned(v, path) if frame.is_module or frame is self.trace.root else None
            if parameter_path is not None:
                parameters[v] = parameter_path
            else:
                inputs.append(v)
        inputs, names = self.named(frame, inputs)
        calls: list[SourceStep] = [self.invokes[c] if isinstance(c, Frame) else c for c in frame.calls]
        for call in calls:
            if isinstance(call, Invoke) and call.path is not None:
                call.path = call.path[len(path) :]
        outputs = list(self.outputs[frame])
        if frame is self.trace.root:
            results = dict.fromkeys([*variables(self.trace.result), *variables(self.trace.written)])
            outputs = [v for v in results if v.value is None]  # a constant is written where it is returned
        layer = None
        if self.modules is not None and frame.is_module and frame is not self.trace.root:
            layer = self.modules.layer(frame, calls, inputs, parameters)
        return SourceBody(frame, path, calls, inputs, names, parameters, outputs, layer)

    def owned(self, v: Var, path: Path) -> Path | None:
        for p in self.paths.get(v, ()):
            if p[: len(path)] == path:
                return p[len(path) :]
        return None

    def named(self, frame: Frame, inputs: list[Var]) -> tuple[list[Var], list[str]]:
        """Return the inputs in the order of the signature, and its names for them where a name has one array."""
        names: dict[Var, str] = {}
        if self.trace.key is not None:
            names[self.trace.key] = "key"
        for name, tree in frame.arguments:
            arrays = list(variables(tree))
            for i, v in enumerate(arrays):
                names.setdefault(v, name if len(arrays) == 1 else f"{name}_{i}")
        order = {v: i for i, v in enumerate(names) if v is not self.trace.key}  # the key comes last
        inputs = sorted(inputs, key=lambda v: order.get(v, len(order)))
        is_key = self.trace.key is not None
        return inputs, [
            names.get(v, "rng" if is_key and v.shape == (2,) and v.dtype == np.uint32 else "") for v in inputs
        ]

    # ---- one function for bodies that do the same ------------------------------------------------------------------

    def function(self, bodies: list[SourceBody]) -> SourceFunction:
        first = bodies[0]
        outputs = self.common_outputs(bodies)
        if len(bodies) == 1:
            calls, arguments, parameters = first.calls, first.inputs, first.parameters
            buffers = {v for v in parameters if v in self.buffers}
            n = self.trace_count
            results = outputs[0]
            originals = [first.calls]
        else:
            m = Merger(trace_count=self.trace_count, ranks=first.any_rank)
            n = self.trace_count * len(bodies)
            arguments = [m.var(vs) for vs in zip(*(b.inputs for b in bodies), strict=True)]
            by_path = [{p: v for v, p in b.parameters.items()} for b in bodies]
            parameters = {m.var([d[p] for d in by_path]): p for p in by_path[0]}
            buffers = {v for v, p in parameters.items() if by_path[0][p] in self.buffers}
            calls = [_merged(m, calls) for calls in zip(*(b.calls for b in bodies), strict=True)]
            results = [m.var(vs) for vs in zip(*outputs, strict=True)]
            originals = [b.calls for b in bodies]
        is_root = first.frame is self.trace.root
        is_module = first.frame.is_module or (is_root and self.modules is not None and bool(first.parameters))
        is_class = is_module and self.modules is not None
        function = SourceFunction(
            "" if first.layer else self.name(first.frame.kind, is_class),
            first.frame.kind,
            first.frame.doc,
            is_module,
            arguments,
            first.names,
            parameters,
            buffers,
            [*calls],
            results,
            place=first.frame.place,
            uses=len(bodies),
            layer=first.layer,
            paths=[b.path for b in bodies],
        )
        attributes = [b.frame.attributes for b in bodies] if is_class else []
        statics = extract_numbers(function, originals, n, is_root, attributes)
        config: dict[str, list[Any]] = {}
        if self.modules is not None and is_module:
            self.modules.configure(function, attributes, statics, config)
        for i, body in enumerate(bodies):
            self.invokes[body.frame] = self.invoke(
                function, body, outputs[i], _instance(statics, i), _instance(config, i)
            )
        function.statics, function.config = _instance(statics, 0), _instance(config, 0)
        return function

    def invoke(
        self,
        function: SourceFunction,
        body: SourceBody,
        outputs: list[Var],
        statics: dict[str, Any],
        config: dict[str, Any],
    ) -> Invoke:
        """Return the call of a function in place of one of its bodies."""
        layer_outputs = _or_unused(body.layer.gives, outputs) if body.layer else None
        return Invoke(
            "",
            tuple(body.inputs),
            {},
            tuple(outputs) if layer_outputs is None else layer_outputs,
            self.outcome_names(body.frame, outputs if layer_outputs is None else list(variables(layer_outputs))),
            body.frame.place,
            function=function,
            path=body.path if body.frame.is_module else None,
            statics=statics,
            config=dict(body.layer.arguments) if body.layer and body.layer.callee else config,
        )

    def outcome_names(self, frame: Frame, outputs: list[Var]) -> tuple[str, ...]:
        results = list(variables(frame.result))
        names = dict(zip(results, frame.names, strict=False)) if len(results) == len(frame.names) else {}
        if isinstance(frame.result, tuple | list) and 1 < len(frame.result) == len(frame.names) < len(results):
            for part, name in zip(frame.result, frame.names, strict=True):  # output, state = lstm(x)
                arrays = list(variables(part))
                names |= {v: name if len(arrays) == 1 else name and f"{name}_{i}" for i, v in enumerate(arrays)}
        if len(frame.names) == 1 and results:
            names = {results[0]: frame.names[0]}
        return tuple(names.get(v) or self.hints.get(v, "") for v in outputs)

    def common_outputs(self, bodies: list[SourceBody]) -> list[list[Var]]:
        """Return for each body the arrays that any of the bodies outputs, in one order."""
        orders = [{v: i for i, v in enumerate(b.made_values())} for b in bodies]
        positions = list(dict.fromkeys(order[v] for b, order in zip(bodies, orders, strict=True) for v in b.outputs))
        backs = [list(order) for order in orders]
        return [[order_of_vars[i] for i in positions] for order_of_vars in backs]

    def name(self, kind: str, is_class: bool = False) -> str:
        base = kind if is_class and kind.isidentifier() else snake(kind)
        if isinstance(kind, HubName) and base in self.kinds:
            base = f"_{base}"  # the program has one of this name
        for candidate in itertools.chain([base], (f"{base}{'' if is_class else '_'}{i}" for i in itertools.count(2))):
            if candidate not in self.names:
                self.names.add(candidate)
                return candidate
        raise AssertionError


def _merged(m: Merger, calls: Sequence[SourceStep]) -> SourceStep:
    first = calls[0]
    if isinstance(first, Invoke):
        return changed(
            first,
            args=m.tree([c.args for c in calls]),
            results=m.tree([c.results for c in calls]),
            statics={k: m.tree([c.statics[k] for c in calls]) for k in first.statics},  # type: ignore[attr-defined]
            config={k: m.tree([c.config[k] for c in calls]) for k in first.config},  # type: ignore[attr-defined]
        )
    return m.call(calls)


def _height(frame: Frame, levels: dict[int, list[Frame]]) -> int:
    height = 1 + max((_height(c, levels) for c in frame.calls if isinstance(c, Frame)), default=-1)
    levels[height].append(frame)
    return height


def _instance(values: dict[str, list[Any]], i: int) -> dict[str, Any]:
    """Return the values that an instance has for each name."""
    return {name: traces[i] for name, traces in values.items()}


def _or_unused(tree: Tree, used: Sequence[Var]) -> Any:
    """Return the tree with new arrays in place of those that are not used."""
    if isinstance(tree, Var):
        return tree if tree in used else Var(tree.shape, tree.dtype)
    return None if tree is None else tuple(_or_unused(x, used) for x in tree)
