"""A recorded program as a model of ONNX."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tensorgraft.codegen.output.writing import SizeError
from tensorgraft.codegen.program import SizeGroup, TracedSizes, by_path, trace_at_sizes
from tensorgraft.codegen.recorders.calls import NotExpressibleError, bound
from tensorgraft.codegen.simplification.expanding import expand
from tensorgraft.codegen.structure.size_merging import Extent, merge
from tensorgraft.codegen.structure.sizes import Sizes
from tensorgraft.codegen.trace import Frame, SourceTrace
from tensorgraft.exporting.onnx import rules  # noqa: F401  (they register themselves)
from tensorgraft.exporting.onnx.graph import GraphBuilder, Name, element_type, tensor_of
from tensorgraft.exporting.onnx.rule import rules_of
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.subject import Subject
from tensorgraft.hub.recorded.block import Var, variables

IR_VERSIONS = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12}  # the oldest that has the opset
OPSETS = range(18, 25)


@dataclass
class Model:
    """A `ModelProto` without the values of its initializers, these by name, and the names of the results that are the
    new state, with the path of each."""

    proto: Any
    arrays: dict[str, np.ndarray]
    state: dict[Name, str]
    notes: list[str] = field(default_factory=list)


def model_of(subject: Subject, sizes: OpenSizes, opset: int) -> Model:
    """Return the model of a program. Fixes sizes that cannot be open.

    Raises NotExpressibleError for an operation that ONNX lacks, with the line of the program.
    """
    table = rules_of(opset)

    def prepare(trace: SourceTrace) -> None:
        expand(trace, SimpleNamespace(name="onnx", rules=table))  # type: ignore[arg-type]

    args, kwargs = subject.rebuild(list(subject.arrays))
    sized = trace_at_sizes(subject.source, args, kwargs, bool(sizes.open()), prepare, sizes.names())
    _agree(sizes, sized)
    while True:
        trace = merge(sized.traces)
        _refuse(trace, subject)
        try:
            shapes = [sizes.shape(k) for k in range(len(subject.arrays))]
            model = written(trace, subject.names, shapes, sized.groups, opset)
            model.notes += dict.fromkeys(trace.notes)
            if model.state:
                model.notes.append("the state is an input, whose default is the first state, and a result: NAME_new")
            return model
        except SizeError as error:
            groups = list(enumerate(sized.groups))
            lengths = {g for g, group in groups if group.checked_sizes and group.title != "batch"}
            fixed = lengths or {g for g, group in groups if group.checked_sizes}
            if not fixed:
                raise
            sized.without(fixed, str(error))
            _agree(sizes, sized)


def _agree(sizes: OpenSizes, sized: TracedSizes) -> None:
    """Fix the sizes that the trace fixes, and in the trace those that are fixed."""
    varied = {at for group in sized.groups if group.checked_sizes for at in group.axes}
    reasons = {at: group.reason for group in sized.groups for at in group.axes}
    for g in sizes.open():
        fixed = [at for at in sizes.groups[g].axes if at not in varied]
        if fixed:
            sizes.fix([g], reasons.get(fixed[0]) or "it changes together with another size")
    is_open = {at for g in sizes.open() for at in sizes.groups[g].axes}
    closed = {g for g, group in enumerate(sized.groups) if group.checked_sizes and not is_open.issuperset(group.axes)}
    sized.without(closed, "it is not to be open")


def _refuse(trace: SourceTrace, subject: Subject) -> None:
    if trace.key is not None:
        raise NotExpressibleError(f"{subject.name} draws random numbers, which a model of ONNX has none of its own for")


def written(
    trace: SourceTrace, names: Sequence[Name], shapes: Sequence[Sequence[Any]], groups: Sequence[SizeGroup], opset: int
) -> Model:
    """Return the model of an expanded trace; `names` and `shapes` are those of its inputs, `groups` the sizes of
    these. State is an input with a default, and a result."""
    return _Writer(trace, names, shapes, groups, opset).model()


class _Writer:
    """Writes one trace."""

    def __init__(
        self, trace: SourceTrace, names: Sequence[Name], shapes: Sequence[Sequence[Any]], groups: Sequence[SizeGroup],
        opset: int,
    ) -> None:  # fmt: skip
        self._trace, self._groups, self._rules = trace, groups, rules_of(opset)
        self._inputs = [*variables([t for _, t in trace.arguments])]
        self._input_names, self._shapes = names, shapes
        known = dict(zip(self._inputs, names, strict=True))
        owned = {**trace.parameters, **trace.buffers}
        known |= {v: path if path not in names else f"{path}_weight" for path, v in owned.items()}
        self._outputs = {
            path if path not in known.values() else f"{path}_result": v
            for path, v in by_path(trace.result).items() if isinstance(v, Var)
        }  # fmt: skip
        self._state = {f"{path}_new": path for path in trace.written}
        self._outputs |= {name: trace.written[path] for name, path in self._state.items()}
        self._g = GraphBuilder(opset, known, self._run, self._outputs)
        for path, v in owned.items():
            self._g.arrays[known[v]] = np.asarray(trace.weights.get(path, trace.constants.get(path, v.value)))

    def model(self) -> Model:
        g, trace = self._g, self._trace
        g.sizes = Sizes(self._sources())
        self._run_frame(trace.root, "")
        outputs = self._output_nodes()
        state = self._state_inputs()
        used = {n for node in g.nodes for n in _inputs_of(node)} | {x.name for x in state}
        arrays = {n: x for n, x in g.arrays.items() if n in used}
        graph = helper.make_graph(
            _pruned(g.nodes, {info.name for info in outputs}), trace.name,
            [_info(name, v.dtype, shape)
             for name, v, shape in zip(self._input_names, self._inputs, self._shapes, strict=True)] + state,
            outputs, [_declaration(n, x) for n, x in arrays.items()],
        )  # fmt: skip
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", g.opset)], producer_name="tensorgraft",
            ir_version=IR_VERSIONS[g.opset],
        )  # fmt: skip
        return Model(model, arrays, self._state)

    def _state_inputs(self) -> list[Any]:
        """Return the inputs for state: optional ones, since they have initializers of the same names."""
        owned = {**self._trace.parameters, **self._trace.buffers}
        return [_info(self._g(owned[path]), owned[path].dtype, owned[path].shape) for path in self._state.values()]

    def _sources(self) -> list[Any]:
        """Return the sizes of the inputs: values in each trace, and a function that writes one."""
        sources = []
        for group in self._groups:
            if group.checked_sizes:
                array, axis = group.axes[0]
                extent = self._inputs[array].shape[axis]
                if isinstance(extent, Extent):
                    sources.append((extent.values, lambda array=array, axis=axis: ast.Name(self._size(array, axis))))
        return sources

    def _size(self, array: int, axis: int) -> Name:
        g = self._g
        shape = g.op("Shape", self._inputs[array], start=axis, end=axis + 1)
        return str(shape)

    def _output_nodes(self) -> list[Any]:
        g = self._g
        infos = []
        for name, v in self._outputs.items():
            g.nodes.append(helper.make_node("Identity", [g(v)], [name]))
            infos.append(_info(name, v.dtype, [None if isinstance(n, Extent) else int(n) for n in v.shape]))
        return infos

    def _run_frame(self, frame: Frame, path: str) -> None:
        """Write the calls of a frame; nodes are named by the modules around them, as PyTorch's exporters do."""
        outer = self._g.module
        for call in frame.calls:
            if not isinstance(call, Frame):
                self._run([call])
            elif call.is_module and call.path:
                self._g.module = f"{outer}/{call.path.removeprefix(f'{path}.')}"
                self._run_frame(call, call.path)
                self._g.module = outer
            else:
                self._run_frame(call, path)

    def _run(self, calls: Any) -> None:
        g = self._g
        outer = g.method, g.results
        for call in calls:
            g.place = getattr(call, "place", "") or g.place
            g.method, g.results = call.method, call.results
            names = [n for n in getattr(call, "names", ()) if n]
            try:
                with g.hinted(names[0] if names and isinstance(call.results, Var) else ""):
                    out = self._rules[call.method](g, **bound(call.method, call.args, call.kwargs))
            except SizeError:
                raise
            except NotImplementedError as error:
                place = f" ({g.place})" if g.place else ""
                raise NotExpressibleError(f"{error or call.method} cannot be written in ONNX{place}") from error
            for v, name in zip(variables(call.results), _flat(out), strict=True):
                g.names[v] = name
        g.method, g.results = outer


def _flat(out: Any) -> list[Name]:
    return [out] if isinstance(out, str) else [n for x in out for n in _flat(x)]


def _info(name: Name, dtype: Any, shape: Sequence[Any]) -> Any:
    return helper.make_tensor_value_info(name, element_type(dtype), list(shape))


def _declaration(name: Name, value: np.ndarray) -> Any:
    """Return an initializer: with its values if it is small."""
    if value.nbytes <= 1024:
        return tensor_of(name, value)
    declared = onnx.TensorProto(name=name, data_type=element_type(value.dtype), dims=value.shape)
    return declared


def _inputs_of(node: Any) -> Sequence[Name]:
    """Return what a node uses, in bodies, too."""
    bodies = [a.g for a in node.attribute if a.HasField("g")]
    return [*node.input, *(n for body in bodies for inner in body.node for n in _inputs_of(inner))]


def _pruned(nodes: Sequence[Any], outputs: set[Name]) -> list[Any]:
    """Return the nodes that the outputs depend on."""
    used, kept = set(outputs), []
    for node in reversed(nodes):
        if used.intersection(node.output):
            kept.append(node)
            used.update(_inputs_of(node))
    return kept[::-1]
