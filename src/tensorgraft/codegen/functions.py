"""Functions out of frames: one for each kind of module, called with other parameters for each of them.

    Frame Block h.0 ┐
    Frame Block h.1 ├─>  SourceFunction block, and Invokes of it;  in a row, each fed by the one before: a Repeat
    Frame Block h.2 ┘

Frames are the same function where they do the same to their arguments and parameters but for numbers. A number that
differs is an expression of the sizes of the arguments, or an argument (`Static`) of the function.
"""

from __future__ import annotations

import inspect
import itertools
import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tensorgraft.codegen.merging import Extent, Merger, Quantity
from tensorgraft.codegen.sizes import Sizes
from tensorgraft.codegen.trace import (
    Block,
    Frame,
    SourceStep,
    SourceTrace,
    Tree,
    Var,
    frames,
    given,
    prune,
    steps,
    variables,
)
from tensorgraft.codegen.words import WORDS
from tensorgraft.hub.operations import operations
from tensorgraft.hub.operations.elementwise import ELEMENTWISE

CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "Identity"})
# operations that do the same whatever the number of axes before the last
RANK_FREE = frozenset({"linear", "layer_norm", "rms_norm", "embedding", "dropout", "stop_gradient"}) | {
    *ELEMENTWISE,
    "relu",
    "silu",
    "gelu",
}
Path = tuple[str, ...]


@dataclass(eq=False, frozen=True)
class Static:
    """An argument of a function that is no array: what differs between the calls."""

    name: str


@dataclass
class Layer:
    """How a class of the target is made that does what a function does: `nn.Linear(48, 144, bias=False)`."""

    callee: str  # "" for a row of modules
    arguments: dict[str, Any]  # "0", "1", ... for those without a keyword
    defaults: dict[str, Any] = field(default_factory=dict)
    takes: Tree = None  # its arrays, as places in the function's arguments: (0, (1, 2)); None: one after another
    gives: Tree = None  # what it gives; None: the function's results


@dataclass(eq=False)
class SourceFunction:
    """What is written as a function or a class."""

    name: str
    kind: str
    doc: str
    is_module: bool
    arguments: list[Var]
    argument_names: list[str]
    parameters: dict[Var, Path]  # where its own are, from its module
    buffers: set[Var]  # those of them that are not trained
    calls: list[SourceStep | Repeat]
    results: list[Var]
    statics: dict[str, Any] = field(default_factory=dict)  # name -> its value in the first call
    place: str = ""
    uses: int = 1
    layer: Layer | None = None  # a class of the target does what it does
    config: dict[str, Any] = field(
        default_factory=dict
    )  # what its class's constructor takes: name -> value in the first
    paths: list[Path] = field(default_factory=list)  # of the modules, from the program
    shapes: dict[Path, tuple[Any, ...]] = field(default_factory=dict)  # of its own parameters, in what its class takes


@dataclass(eq=False)
class Invoke(SourceStep):
    """A call of a function: `args` are arrays, `outcome` is a tuple of them."""

    function: SourceFunction = None  # type: ignore[assignment]
    path: Path | None = None  # of the module, from the module around; None for what is no module
    statics: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)  # what the module is made with: of a layer, or its class


@dataclass(eq=False)
class Repeat:
    """Invokes in a row of modules of one list, each of which takes results of the one before."""

    invokes: list[Invoke]
    path: Path  # of the list
    first: int
    carried: list[tuple[int, int]]  # (position among the results, among the arguments)


class ModuleRules(Protocol):
    """What a style of classes says of modules."""

    ties: bool  # two modules may hold one parameter

    def look(self, trace: SourceTrace, paths: Mapping[Var, Sequence[Path]]) -> None:
        """At the frames, before `keeps` is asked."""

    def keeps(self, frame: Frame) -> bool | None:
        """It stays a module of its own, or not; None: as functions do."""

    def layer(
        self, frame: Frame, calls: Sequence[SourceStep], inputs: Sequence[Var], own: Mapping[Var, Path]
    ) -> Layer | None:
        """The class of the target that does this, if there is one."""

    def configure(
        self,
        function: SourceFunction,
        attributes: Sequence[Mapping[str, Any]],
        statics: dict[str, list[Any]],
        config: dict[str, list[Any]],
    ) -> None:
        """Let numbers that differ between modules, and `statics` that belong to them, be arguments of constructors:
        `config`, name -> value in each. `attributes`: of each of the modules."""


def functions_of(
    trace: SourceTrace,
    each: int,
    modules: ModuleRules | None = None,
    taken: Collection[str] = (),
    apart: Collection[str] = (),
) -> list[SourceFunction]:
    """The functions of a merged trace (of `each` traces), those that are called before those that call them; the last
    one is the program. Their names are others than those that are `taken`. `modules`: for styles that write classes.
    `apart`: operations whose numbers are the same in all calls of a function."""
    return _Builder(trace, each, modules, taken, apart).build()


class _Builder:
    def __init__(
        self, trace: SourceTrace, each: int, modules: ModuleRules | None, taken: Collection[str], apart: Collection[str]
    ) -> None:
        self.trace, self.each, self.modules = trace, each, modules
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
        self.names = set(taken)
        self.apart = apart

    def build(self) -> list[SourceFunction]:
        root = self.trace.root
        prune(self.trace)
        self.hints = {v: path.rsplit(".", 1)[-1] for path, v in self.trace.written.items()}
        if self.modules is not None:
            self.modules.look(self.trace, self.paths)
            self.hints |= {s.args[1]: s.names[0] for s in steps(root) if s.method == "assign"}
        counts = Counter(f.kind for f in frames(root))
        self.splice(root, (), counts)
        prune(self.trace)
        self.hint(root)
        self.flow(root)
        levels: dict[int, list[Frame]] = defaultdict(list)
        _height(root, levels)
        self.invokes: dict[Frame, Invoke] = {}
        for level in sorted(levels):
            groups: dict[Any, list[_Body]] = {}
            for frame in levels[level]:
                body = self.body(frame)
                groups.setdefault(body.key(self.apart), []).append(body)
            for bodies in groups.values():
                self.functions.append(self.function(bodies))
        for function in self.functions:
            _fold(function)
        return self.functions

    # ---- which frames are functions --------------------------------------------------------------------------------

    def splice(self, frame: Frame, path: Path, counts: Counter[str]) -> None:
        """Put the calls of frames that are not worth a function into those around them."""
        calls: list[SourceStep | Frame] = []
        for call in frame.calls:
            if isinstance(call, Frame):
                own = tuple(call.path.split(".")) if call.path else ()
                below = path if not call.is_module else own
                self.splice(call, below, counts)
                self.absorb(call)
                if not self.worthy(call, own, path, counts):
                    if call.calls and call.names and not _named(call.calls[-1]):
                        call.calls[-1].names = call.names
                    calls += call.calls
                    continue
            calls.append(call)
        frame.calls = calls

    def absorb(self, frame: Frame) -> None:
        """A module that only calls one function is that function."""
        inner = frame.calls[0] if len(frame.calls) == 1 else None
        if frame.is_module and isinstance(inner, Frame) and not inner.is_module:
            frame.calls = inner.calls

    def worthy(self, frame: Frame, own: Path, around: Path, counts: Counter[str]) -> bool:
        if not frame.calls:
            return False
        if frame.is_module and own[: len(around)] != around:
            return False  # a module that is held elsewhere: its parameters are arguments
        kept = None if self.modules is None else self.modules.keeps(frame)
        if kept is not None:
            return kept
        if frame.kind in CONTAINERS and frame.is_module:
            return False
        if len(frame.calls) > 1:
            return True
        if isinstance(frame.calls[0], Frame):
            return False
        parameters = {v for s in steps(frame) for v in variables([s.args, s.kwargs]) if v in self.paths}
        if any(self.owned(v, own) is None for v in parameters):
            return False
        return frame.is_module and len(parameters) > 1 and counts[frame.kind] > 1

    # ---- what goes in and out --------------------------------------------------------------------------------------

    def hint(self, frame: Frame) -> None:
        """State that is written has the name of the buffer."""
        for step in steps(frame):
            arrays = list(variables(step.outcome))
            if any(v in self.hints for v in arrays):
                names = [*step.names, *[""] * (len(arrays) - len(step.names))]
                step.names = tuple(n or self.hints.get(v, "") for n, v in zip(names, arrays, strict=True))

    def flow(self, root: Frame) -> None:
        """`inputs` and `outputs` of each frame: arrays made outside and used inside, and the other way round."""
        self.inputs: dict[Frame, dict[Var, None]] = defaultdict(dict)
        self.outputs: dict[Frame, dict[Var, None]] = defaultdict(dict)
        where: dict[Var, tuple[Frame, ...]] = {}

        def use(v: Var, chain: tuple[Frame, ...]) -> None:
            made = where.get(v, ())
            for f in chain:
                if f not in made:
                    self.inputs[f][v] = None
            for f in made:
                if f not in chain:
                    self.outputs[f][v] = None

        def walk(frame: Frame, chain: tuple[Frame, ...]) -> None:
            for call in frame.calls:
                if isinstance(call, Frame):
                    walk(call, (*chain, call))
                else:
                    for v in variables([call.args, call.kwargs]):
                        use(v, chain)
                    for v in given(call):
                        where[v] = chain

        walk(root, (root,))
        for v in [*variables(self.trace.result), *variables(self.trace.written)]:
            use(v, (root,))
        for v in variables([tree for _, tree in self.trace.arguments]):  # also those that are not used
            self.inputs[root][v] = None
        for frame in list(self.outputs):
            order = {v: i for i, v in enumerate(variables(frame.result))}
            ranked = sorted(self.outputs[frame], key=lambda v: order.get(v, len(order)))
            self.outputs[frame] = dict.fromkeys(ranked)

    def body(self, frame: Frame) -> _Body:
        path = tuple(frame.path.split(".")) if frame.path else ()
        parameters: dict[Var, Path] = {}
        inputs: list[Var] = []
        for v in self.inputs[frame]:
            if v.value is not None:
                continue
            own = self.owned(v, path) if frame.is_module or frame is self.trace.root else None
            if own is not None:
                parameters[v] = own
            else:
                inputs.append(v)
        inputs, names = self.named(frame, inputs)
        calls: list[SourceStep] = [self.invokes[c] if isinstance(c, Frame) else c for c in frame.calls]
        for call in calls:
            if isinstance(call, Invoke) and call.path is not None:
                call.path = call.path[len(path) :]
        outputs = list(self.outputs[frame])
        if frame is self.trace.root:
            given = dict.fromkeys([*variables(self.trace.result), *variables(self.trace.written)])
            outputs = [v for v in given if v.value is None]  # a constant is written where it is returned
        layer = None
        if self.modules is not None and frame.is_module and frame is not self.trace.root:
            layer = self.modules.layer(frame, calls, inputs, parameters)
        return _Body(frame, path, calls, inputs, names, parameters, outputs, layer)

    def owned(self, v: Var, path: Path) -> Path | None:
        for p in self.paths.get(v, ()):
            if p[: len(path)] == path:
                return p[len(path) :]
        return None

    def named(self, frame: Frame, inputs: list[Var]) -> tuple[list[Var], list[str]]:
        """In the order of the signature, and by its names where there is one array for a name."""
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

    def function(self, bodies: list[_Body]) -> SourceFunction:
        first = bodies[0]
        outputs = self.common_outputs(bodies)
        if len(bodies) == 1:
            calls, arguments, parameters = first.calls, first.inputs, first.parameters
            buffers = {v for v in parameters if v in self.buffers}
            n = self.each
            results = outputs[0]
            originals = [first.calls]
        else:
            m = Merger(each=self.each, ranks=first.any_rank)
            n = self.each * len(bodies)
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
        statics = self.settle(function, originals, n, is_root, attributes)
        config: dict[str, list[Any]] = {}
        if self.modules is not None and is_module:
            self.modules.configure(function, attributes, statics, config)
        for i, body in enumerate(bodies):
            given = _or_unused(body.layer.gives, outputs[i]) if body.layer else None
            self.invokes[body.frame] = Invoke(
                "",
                tuple(body.inputs),
                {},
                tuple(outputs[i]) if given is None else given,
                self.outcome_names(body.frame, outputs[i] if given is None else list(variables(given))),
                body.frame.place,
                function=function,
                path=body.path if body.frame.is_module else None,
                statics={name: values[i] for name, values in statics.items()},
                config=dict(body.layer.arguments) if body.layer and body.layer.callee else
                {name: values[i] for name, values in config.items()},
            )  # fmt: skip
        function.statics = {name: values[0] for name, values in statics.items()}
        function.config = {name: values[0] for name, values in config.items()}
        return function

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

    def common_outputs(self, bodies: list[_Body]) -> list[list[Var]]:
        """Of each body the arrays that any of them gives, in one order."""
        orders = [{v: i for i, v in enumerate(b.made())} for b in bodies]
        places = list(dict.fromkeys(order[v] for b, order in zip(bodies, orders, strict=True) for v in b.outputs))
        backs = [list(order) for order in orders]
        return [[back[i] for i in places] for back in backs]

    def settle(
        self,
        function: SourceFunction,
        originals: list[list[SourceStep]],
        n: int,
        root: bool,
        attributes: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, list[Any]]:
        """Numbers that no size of an argument tells become arguments, but of the program: name -> the value in each
        instance. `attributes` of the modules are names for them."""
        seen: list[tuple[Any, Any]] = []
        for v in [*function.arguments, *function.parameters]:
            seen += [(_values(d, n), None) for d in v.shape if d is not Ellipsis]
        statics: dict[str, list[Any]] = {}

        named: dict[str, Static] = {}
        method = ""  # what is being looked at

        def tell(tree: Any, trees: list[Any], name: str) -> Any:
            if not _varies(tree):
                return tree
            sizes = Sizes(seen)
            if _said(tree, sizes) and any(map(_varies, trees)):
                return tree
            if name in _EXTENTS and isinstance(tree, tuple) and all(d in sizes for d in tree):
                return tree
            if (
                name == "shape"
                and method == "reshape"
                and isinstance(tree, tuple)
                and sum(isinstance(d, Extent) for d in tree) == 1
            ):
                return tree  # -1
            if isinstance(tree, dict):
                return {k: tell(tree[k], [t[k] for t in trees], k) for k in tree}
            if isinstance(tree, list | tuple):
                return type(tree)([tell(x, [t[i] for t in trees], name) for i, x in enumerate(tree)])
            if isinstance(tree, slice):
                ends = [tell(getattr(tree, e), [getattr(t, e) for t in trees], e) for e in ("start", "stop", "step")]
                return slice(*ends)
            if root:
                return tree
            for known, values in statics.items():
                if repr(values) == repr(trees) and known.rstrip("0123456789_") == name:
                    return named[known]
            known_as = attribute_of(trees, attributes)
            fresh = next(k for k in itertools.chain(known_as, [name], (f"{name}_{i}" for i in itertools.count(2)))
                         if k not in statics and k not in function.argument_names)  # fmt: skip
            statics[fresh] = trees
            named[fresh] = Static(fresh)
            return named[fresh]

        for i, call in enumerate(function.calls):
            assert isinstance(call, SourceStep)
            method = call.method
            others = [calls[i] for calls in originals]
            if isinstance(call, Invoke):
                statics_of = {
                    k: tell(v, [o.statics[k] for o in others], k)  # type: ignore[attr-defined]
                    for k, v in call.statics.items()
                }
                function.calls[i] = _with(call, statics=statics_of)
            else:
                names = parameter_names(call.method)
                args = tuple(
                    tell(a, [o.args[j] for o in others], names[min(j, len(names) - 1)]) for j, a in enumerate(call.args)
                )
                kwargs = {k: tell(v, [o.kwargs[k] for o in others], k) for k, v in call.kwargs.items()}
                function.calls[i] = _with(call, args=args, kwargs=kwargs)
            for v in given(call):
                seen += [(_values(d, n), None) for d in v.shape if d is not Ellipsis]
        return statics

    def name(self, kind: str, is_class: bool = False) -> str:
        base = kind if is_class and kind.isidentifier() else snake(kind)
        for candidate in itertools.chain([base], (f"{base}{'' if is_class else '_'}{i}" for i in itertools.count(2))):
            if candidate not in self.names:
                self.names.add(candidate)
                return candidate
        raise AssertionError


@dataclass(eq=False)
class _Body:
    """A frame whose calls are steps and invokes."""

    frame: Frame
    path: Path
    calls: list[SourceStep]
    inputs: list[Var]
    names: list[str]
    parameters: dict[Var, Path]
    outputs: list[Var]
    layer: Layer | None = None

    def made(self) -> Iterator[Var]:
        yield from self.inputs
        yield from self.parameters
        for call in self.calls:
            yield from given(call)

    @property
    def any_rank(self) -> bool:
        """It does the same to arrays of any number of axes: parameters have those that they have."""
        arrays = [*self.inputs, *(v for c in self.calls for v in given(c))]
        return (
            len(self.inputs) == 1
            and len(arrays) == len(self.calls) + 1
            and all(c.method in RANK_FREE for c in self.calls)
            and all(v.ndim for v in arrays)
        )

    def key(self, apart: Collection[str]) -> Any:
        """Equal where bodies differ in numbers only, and in those of the operations `apart` not even in these."""
        exact = False
        number: dict[Var, Any] = {v: ("parameter", p) for v, p in self.parameters.items()}
        number |= {v: ("argument", i) for i, v in enumerate(self.inputs)}

        any_rank = self.any_rank

        def of(x: Any) -> Any:
            if isinstance(x, Var):
                if x.value is not None:
                    return ("constant", x.shape, x.dtype.name, x.value.tobytes())
                if x not in number:
                    number[x] = len(number)
                return number[x], None if any_rank and x not in self.parameters else x.ndim, x.dtype.name
            if isinstance(x, tuple | list):
                return tuple(map(of, x))
            if isinstance(x, dict):
                return tuple((k, of(v)) for k, v in x.items())
            if isinstance(x, slice):
                return ("slice", of(x.start), of(x.stop), of(x.step))
            if isinstance(x, Block):
                return ("block", of(x.parameters), tuple(map(call, x.calls)), of(x.result))
            if isinstance(x, int | float) and not isinstance(x, bool):
                if exact:
                    return getattr(x, "values", x)
                return int if isinstance(x, int) else float
            if isinstance(x, np.ndarray):
                return x.shape, x.dtype.name, x.tobytes()
            return type(x).__name__, str(x)

        def call(c: Any) -> Any:
            if isinstance(c, Invoke):
                return id(c.function), c.path, of(c.args), of(c.statics), of(c.outcome)
            nonlocal exact
            exact = c.method in apart
            arguments = of(c.args), of(c.kwargs)
            exact = False
            return c.method, *arguments, of(c.outcome)

        layer = self.layer and self.layer.callee
        return self.frame.kind, layer, tuple(self.names), tuple(map(of, self.inputs)), tuple(map(call, self.calls))


def _merged(m: Merger, calls: Sequence[SourceStep]) -> SourceStep:
    first = calls[0]
    if isinstance(first, Invoke):
        return _with(
            first,
            args=m.tree([c.args for c in calls]),
            outcome=m.tree([c.outcome for c in calls]),
            statics={k: m.tree([c.statics[k] for c in calls]) for k in first.statics},  # type: ignore[attr-defined]
            config={k: m.tree([c.config[k] for c in calls]) for k in first.config},  # type: ignore[attr-defined]
        )
    return m.call(calls)


def _with(call: SourceStep, **changes: Any) -> Any:
    return type(call)(**{**vars(call), **changes})


def _values(x: Any, n: int) -> tuple[int, ...]:
    return x.values if isinstance(x, Extent) else (int(x),) * n


# arguments that are extents of arrays: what differs between modules in them is one of their arrays' extents
_EXTENTS = frozenset({"shape", "sizes", "n"})


def _varies(tree: Any) -> bool:
    """A number in it depends on the sizes of the program's arguments."""
    if isinstance(tree, list | tuple):
        return any(map(_varies, tree))
    if isinstance(tree, dict):
        return any(map(_varies, tree.values()))
    if isinstance(tree, slice):
        return any(map(_varies, (tree.start, tree.stop, tree.step)))
    return isinstance(tree, Extent | Quantity)


def _said(tree: Any, sizes: Sizes) -> bool:
    """Every number in the tree can be said with these sizes; arrays are said anyway."""
    if isinstance(tree, Extent | Quantity):
        return sizes.expression_exists(tree)
    if isinstance(tree, list | tuple):
        return all(_said(x, sizes) for x in tree)
    if isinstance(tree, dict):
        return all(_said(x, sizes) for x in tree.values())
    if isinstance(tree, slice):
        return all(_said(x, sizes) for x in (tree.start, tree.stop, tree.step))
    return True


def _named(call: SourceStep | Frame) -> bool:
    return any(call.names)


def _height(frame: Frame, levels: dict[int, list[Frame]]) -> int:
    height = 1 + max((_height(c, levels) for c in frame.calls if isinstance(c, Frame)), default=-1)
    levels[height].append(frame)
    return height


def _fold(function: SourceFunction) -> None:
    """Rows of invokes as loops."""
    calls: list[SourceStep | Repeat] = []
    used: Counter[Var] = Counter(function.results)
    for call in function.calls:
        assert isinstance(call, SourceStep)
        used.update(variables([call.args, call.kwargs]))
    i = 0
    while i < len(function.calls):
        row = _row(function.calls, i, used)
        if row is not None:
            calls.append(row)
            i += len(row.invokes)
        else:
            calls.append(function.calls[i])
            i += 1
    function.calls = calls


def _row(calls: Sequence[Any], i: int, used: Counter[Var]) -> Repeat | None:
    first = calls[i]
    if not isinstance(first, Invoke) or not first.path or not first.path[-1].isdigit():
        return None
    start = int(first.path[-1])
    row = [first]
    carried: list[tuple[int, int]] | None = None
    for call in calls[i + 1 :]:
        last = row[-1]
        if (
            not isinstance(call, Invoke)
            or call.function is not first.function
            or call.path != (*first.path[:-1], str(start + len(row)))
            or repr(call.statics) != repr(first.statics)
        ):
            break
        links = [(last.outcome.index(a), j) for j, a in enumerate(call.args) if a in last.outcome]
        rest = all(a is b for j, (a, b) in enumerate(zip(call.args, last.args, strict=True))
                   if j not in {k for _, k in links})  # fmt: skip
        if not links or not rest or (carried is not None and links != carried):
            break
        if any(used[v] - call.args.count(v) > 0 for v in last.outcome):
            break  # somebody else looks at what is between
        carried = links
        row.append(call)
    if len(row) < 2 or carried is None:
        return None
    passed = {r for r, _ in carried}
    if any(used[v] for k, v in enumerate(row[-1].outcome) if k not in passed):
        return None
    return Repeat(row, first.path[:-1], start, carried)


def _or_unused(tree: Tree, used: Sequence[Var]) -> Any:
    """The tree, with new arrays in the place of those that nobody uses."""
    if isinstance(tree, Var):
        return tree if tree in used else Var(tree.shape, tree.dtype)
    return None if tree is None else tuple(_or_unused(x, used) for x in tree)


def attribute_of(values: Sequence[Any], attributes: Sequence[Mapping[str, Any]]) -> list[str]:
    """What modules call a number that has these values in them."""
    if not attributes:
        return []
    pairs = list(zip(attributes, values, strict=True))
    return [k for k in attributes[0] if all(type(a.get(k)) is type(v) and a[k] == v for a, v in pairs)]


def parameter_names(method: str) -> list[str]:
    """Of an operation of the hub or a word."""
    fn = WORDS.get(method) or operations().get(method)
    if fn is None:
        return ["value"]
    return list(inspect.signature(fn).parameters)[1:] or ["value"]


def snake(kind: str) -> str:
    """`GPT2Block` -> "gpt2_block", `LSTMModel` -> "lstm_model", `ResNet` -> "resnet", `ViT` -> "vit"."""
    kind = re.sub(r"Net(?![a-z])", "net", kind)
    s = re.sub(r"(?<=[a-z0-9])(?=[A-Z](?!$))|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()
    s = re.sub(r"\W+", "_", s).strip("_") or "function"
    return f"{s}_" if keyword.iskeyword(s) or s in ("p", "params") else s
