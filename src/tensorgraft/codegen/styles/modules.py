"""Modules in styles of classes: which frames become modules, which of them are layers of the target, and the arguments
of constructors."""

from __future__ import annotations

import itertools
import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorgraft.codegen.recorders.calls import bound
from tensorgraft.codegen.structure.functions import Invoke, Layer, Path, Repeat, SourceFunction, Static, attribute_of
from tensorgraft.codegen.structure.size_merging import Extent, Quantity
from tensorgraft.codegen.trace import Frame, SourceStep, SourceTrace, Var, frames, inputs_of, variables

LISTS = frozenset({"Sequential", "ModuleList", "ModuleDict", "ParameterList", "list"})
MOST = 8  # a size is written as a multiple of another one up to this factor


@dataclass(frozen=True)
class Multiple:
    """The expression `times * size`, where `size` is an argument of the constructor."""

    size: Static
    times: int


Values = dict[str, Any]  # a call's arguments by their names
Table = Mapping[str, Callable[[Values], Layer | None]]


class ModuleForms:
    """An implementation of `functions.ModuleRules` by a table of layers: {word: a function that returns the layer for
    the arguments of a call of the word}. The layer's parameters must have their usual names."""

    def __init__(
        self,
        table: Table,
        rows: bool = False,
        reassigned: bool = False,
        ties: bool = True,
        recurrent: Mapping[str, str] | None = None,
    ) -> None:
        """`rows`: the target has a class for modules in a row (`nn.Sequential`); `reassigned`: layers write the state
        that they hold; `ties`: two modules may hold one parameter; `recurrent`: layers that are what the
        source framework has under this name."""
        self.recurrent = recurrent or {}
        self.table, self.rows, self.reassigned, self.ties = table, rows, reassigned, ties
        self.chained: set[Frame] = set()
        self.members: set[Frame] = set()
        self.own: dict[Frame, bool] = {}

    # ---- which frames are modules ---------------------------------------------------------------------------------

    def examine(self, trace: SourceTrace, paths: Mapping[Var, Sequence[Path]]) -> None:
        self.paths = paths
        self.see(trace.root, trace.root)

    def see(self, frame: Frame, root: Frame) -> bool:
        """Return whether a frame has parameters or randomness, and note it for this frame and all inside it."""
        if frame is not root and frame.is_module and not frame.path:
            frame.is_module = False  # no other module has it as an attribute
        is_stateful = False
        for call in frame.calls:
            if isinstance(call, Frame):
                is_stateful |= self.see(call, root)
            else:
                used = [v for v in variables([call.args, call.kwargs]) if v in self.paths]
                is_stateful |= (call.method == "dropout" and call.method in self.table) or any(
                    self.belongs(v, frame.path) for v in used
                )
        self.own[frame] = is_stateful
        if self.rows and frame.is_module and self.in_a_row(frame):
            self.chained.add(frame)
            self.members.update(c for c in frame.calls if isinstance(c, Frame))
        return is_stateful

    def in_a_row(self, frame: Frame) -> bool:
        """Return whether a frame calls modules 0, 1, ... that each take the result of the one before, and nothing
        else."""
        last: Var | None = None
        last_index = -1
        for call in frame.calls:
            if not isinstance(call, Frame) or not call.is_module or not isinstance(call.result, Var) or call.left:
                return False
            head, _, name = call.path.rpartition(".")  # only modules in an nn.Sequential have numbers for names
            if head != frame.path or not name.isdigit() or int(name) <= last_index:
                return False
            last_index = int(name)
            inputs = {v for v in inputs_of(call) if v.value is None and not self.belongs(v, call.path)}
            outputs = set(_outputs_within(call))
            inputs -= outputs
            if len(inputs) != 1 or (last is not None and inputs != {last}):
                return False
            last = call.result
        return last is not None and frame.result is last

    def belongs(self, v: Var, path: str) -> bool:
        """Return whether `v` is a parameter or buffer of the module at `path`, or of its submodules."""
        parts = tuple(path.split(".")) if path else ()
        return any(p[: len(parts)] == parts for p in self.paths.get(v, ()))

    def keeps(self, frame: Frame) -> bool | None:
        if not frame.is_module:
            return False if any(c.is_module for c in frames(frame)) else None
        if frame in self.chained or frame in self.members:
            return True
        if frame.kind in LISTS:
            return False
        return True if self.own.get(frame) else None

    # ---- layers ---------------------------------------------------------------------------------------------------

    def layer(
        self, frame: Frame, calls: Sequence[SourceStep], inputs: Sequence[Var], parameters: Mapping[Var, Path]
    ) -> Layer | None:
        if frame in self.chained:
            return Layer("", {})
        if frame.kind in self.recurrent:
            return recurrent(frame, calls, inputs, parameters, self.recurrent[frame.kind])
        main = self.single(calls)
        if main is None or isinstance(main, Invoke) or main.method not in self.table:
            return None
        values = bound(main.method, main.args, main.kwargs)
        for name, v in values.items():
            if isinstance(v, Var) and v in parameters:
                if parameters[v] != (_PARAMETERS.get(name, name),):
                    return None
            elif isinstance(v, Var) and v.value is not None:
                return None
        used = set(variables(list(values.values())))
        if {v for v in used if v not in parameters} != set(inputs) or len(inputs) != 1:
            return None
        if any(parameters[v] != ("num_batches_tracked",) for v in parameters if v not in used):
            return None
        return self.table[main.method](values)

    def single(self, calls: Sequence[SourceStep]) -> SourceStep | None:
        """Return the only call of a body, except calls that write its state; None if there are several."""
        assigns = [c for c in calls if c.method == "assign"]
        rest = [c for c in calls if c.method not in ("assign", "stop_gradient")]
        if assigns and self.reassigned and any(c.method == "batch_norm_training" for c in rest):
            rest = [c for c in rest if c.method != "add"]
            return rest[0] if len(rest) == 1 and len(assigns) >= 2 else None
        return calls[0] if len(calls) == 1 else None

    # ---- what constructors take -----------------------------------------------------------------------------------

    def configure(
        self,
        function: SourceFunction,
        attributes: Sequence[Mapping[str, Any]],
        statics: dict[str, list[Any]],
        config: dict[str, list[Any]],
    ) -> None:
        if function.layer is not None and function.layer.callee:
            statics.clear()  # the arguments of the layer include them
            return
        count = function.uses
        for name in list(statics):
            values = statics[name]
            same_of_path = {p: repr(v) for p, v in zip(function.paths, values, strict=True)}
            constant = not any(isinstance(x, Extent | Quantity) for v in values for x in _numbers(v))
            if constant and all(same_of_path[p] == repr(v) for p, v in zip(function.paths, values, strict=True)):
                config[name] = statics.pop(name)
        taken_names = {*function.argument_names, *statics, *(p[0] for p in function.parameters.values())}

        def argument_of(value: Any, hint: str) -> Any:
            if isinstance(value, tuple | list):
                return type(value)([argument_of(v, hint) for v in value])
            if not isinstance(value, Extent | Quantity):
                return value
            per_function = len(value.values) // count
            values = [value.values[i * per_function] for i in range(count)]
            known = next((k for k, v in config.items() if v == values and (k == hint or isinstance(v[0], int))), None)
            if known is not None:
                return Static(known)
            for k, v in config.items():
                if all(isinstance(a, int) and a and b % a == 0 and b > MOST for a, b in zip(v, values, strict=True)):
                    times = {b // a for a, b in zip(v, values, strict=True)}
                    if len(times) == 1 and 1 < min(times) <= MOST and len(set(v)) > 1:
                        return Multiple(Static(k), times.pop())
            names = itertools.chain(
                attribute_of(values, attributes), [hint], (f"{hint}_{i}" for i in itertools.count(2))
            )
            static = next(n for n in names if n not in config and n not in taken_names and not keyword.iskeyword(n))
            config[static] = values
            return Static(static)

        invokes = [i for call in function.calls for i in (call.invokes if isinstance(call, Repeat) else [call])]
        module_paths = [i.path for i in invokes if isinstance(i, Invoke) and i.path is not None]
        for v, path in function.parameters.items():
            if not any(path[: len(p)] == p for p in module_paths):  # else the class of that module has its shape
                hints = {1: ["size"], 2: ["rows", "columns"]}.get(v.ndim, ["size"] * v.ndim)
                shape = tuple(argument_of(d, hint) for d, hint in zip(v.shape, hints, strict=True))
                function.shapes[path] = shape
        for invoke in invokes:
            if isinstance(invoke, Invoke):
                invoke.config = {k: argument_of(v, _hint(k, invoke)) for k, v in invoke.config.items()}
        order = {name: i for i, name in enumerate(attributes[0])} if attributes else {}
        for name in sorted(config, key=lambda k: order.get(k, len(order))):  # in the order of the source
            config[name] = config.pop(name)


def recurrent(
    frame: Frame, calls: Sequence[SourceStep], inputs: Sequence[Var], parameters: Mapping[Var, Path], callee: str
) -> Layer | None:
    """Match a call of PyTorch's LSTM or GRU: a step for each layer and direction, and the steps that prepare their
    operands."""
    a = frame.attributes
    word = frame.kind.lower()
    names = {p[0] for p in parameters.values()}
    if (
        "hidden_size" not in a
        or "weight_ih_l0" not in names
        or not all(n[:7] in ("weight_", "bias_ih", "bias_hh") for n in names)
    ):
        return None
    two_way = "weight_ih_l0_reverse" in names
    kinds = [c.function.kind if isinstance(c, Invoke) else c.method for c in calls]
    if kinds.count(word) != a["num_layers"] * (1 + two_way) or "dropout" in kinds:
        return None
    state = dict(frame.arguments).get("hx")
    states = list(variables(state)) if state is not None else []
    x = dict(frame.arguments).get("input", inputs[0] if len(inputs) == 1 else None)
    if not isinstance(x, Var) or list(inputs) != [x, *states] or x.ndim != 3:
        return None
    gives = _used_results(frame, 1 + two_way) if "output" in a else frame.result
    if gives is None:
        return None
    arguments = {"num_layers": (a["num_layers"], 1), "bias": ("bias_ih_l0" in names, True),
                 "batch_first": (bool(a.get("batch_first")), False), "bidirectional": (two_way, False)}  # fmt: skip
    if a.get("proj_size"):
        arguments["proj_size"] = (a["proj_size"], 0)
    return Layer(
        callee,
        {"0": a["input_size"], "1": a["hidden_size"]} | {k: v for k, (v, _) in arguments.items()},
        {k: d for k, (_, d) in arguments.items()},
        takes=None if len(states) < 2 else (0, (1, 2)),
        gives=gives,
    )


def _used_results(frame: Frame, directions: int) -> Any:
    """Return the results of PyTorch's layer, with new arrays for those that are not used: the frame has the outputs,
    the last states h, or both, as its attributes say. None where these cannot be told apart."""
    a, used = {k: int(n) for k, n in frame.attributes.items()}, list(variables(frame.result))
    if len(used) != a["output"] + a["h"]:
        return None
    ends = a["num_layers"] * directions
    if len(used) == 2:
        used.sort(key=lambda v: v.shape[0] == ends and v.shape[-1] == a["hidden_size"])
        if used[0].shape[-1] == a["hidden_size"]:
            return None
    n = used[0].shape[1 - a["batch_first"] if a["output"] else 1]
    output = used[0] if a["output"] else Var((1, n, directions * a["hidden_size"]), used[0].dtype)
    h = used[-1] if a["h"] else Var((ends, n, a["hidden_size"]), used[0].dtype)
    return (output, (h, Var(h.shape, h.dtype))) if frame.kind == "LSTM" else (output, h)


def _hint(name: str, invoke: Invoke) -> str:
    layer = invoke.function.layer
    if not name.isdigit():
        return name
    names = _POSITIONS.get(layer.callee.rpartition(".")[2], ()) if layer is not None else ()
    return names[int(name)] if int(name) < len(names) else "size"


_PARAMETERS = {"mean": "running_mean", "variance": "running_var"}
_POSITIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(["Linear", "Dense"], ("in_features", "out_features")),
    **{f"{kind}{n}": ("in_channels", "out_channels", "kernel_size")
       for kind in ("Conv", "ConvTranspose") for n in ("", "1d", "2d", "3d")},
    "Embedding": ("num_embeddings", "embedding_dim"), "Embed": ("num_embeddings", "features"),
    "LayerNorm": ("width",), "RMSNorm": ("width",), "GroupNorm": ("num_groups", "channels"),
    **{f"BatchNorm{n}": ("channels",) for n in ("", "1d", "2d", "3d")},
    "LSTM": ("input_size", "hidden_size"), "GRU": ("input_size", "hidden_size"), "Dropout": ("rate",),
}  # fmt: skip


def _numbers(x: Any) -> Iterator[Any]:
    if isinstance(x, tuple | list):
        for e in x:
            yield from _numbers(e)
    else:
        yield x


def _outputs_within(frame: Frame) -> Iterator[Var]:
    for call in frame.calls:
        if isinstance(call, Frame):
            yield from _outputs_within(call)
        else:
            yield from variables(call.results)
