"""Graphs of ONNX, made ready to run: functions inlined, nodes resolved to rules or to the operator's definition."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, TypeProto, helper

from tensorgraft.compiled.steps import RuleStep, StepsPlan
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.onnx import rules  # noqa: F401  (they register themselves)
from tensorgraft.frontends.onnx.element_types import CARRIERS, Carried
from tensorgraft.frontends.onnx.graph import OnnxFunction, OnnxGraph, OnnxNode, ValueType
from tensorgraft.frontends.onnx.reading import InvalidModelError, attribute_value, function_of
from tensorgraft.frontends.onnx.rule import CONTEXT, RULES, OperatorRule
from tensorgraft.frontends.onnx.values import GraphBody, is_known, lifted, to_host
from tensorgraft.hub import registry
from tensorgraft.hub.backend import Backend

SMALL = 1 << 14  # elements: smaller known values are computed on the host
NOTE = "in the ONNX operator"
UNWORDED = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RecursionError, StopIteration)
KEY = "\0key"  # the name of the random key, which graphs capture as they do other values


class UnsupportedOperatorError(NotImplementedError):
    """An operator of ONNX without a rule, or without one for these types."""


@dataclass
class OnnxPlan(StepsPlan):
    """A graph as a list of steps. Small constants stay known, larger ones are arrays of the backend."""

    def converted(self, xp: Backend, value: Any) -> Any:
        return value if _size(value) <= SMALL or _is_text(value) else lifted(xp, value)

    def arrays_in(self, value: Any) -> Sequence[Any]:
        return (value.array,) if isinstance(value, Carried) else (value,)


def _size(x: Any) -> int:
    if isinstance(x, tuple):
        return sum(map(_size, x))
    return math.prod(x.shape) if hasattr(x, "shape") else 0


def _is_text(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == object


@dataclass
class OnnxPlanner:
    """Makes the steps of a plan, for the versions of operators that a model or a function states."""

    functions: Mapping[tuple[str, str, str], OnnxFunction]
    opsets: Mapping[str, int]
    plan: OnnxPlan = field(default_factory=OnnxPlan)
    draws: bool = False
    call: str = ""  # the function that is being inlined
    _draw_count: int = 0

    def plan_graph(
        self, graph: OnnxGraph, inputs: Sequence[str], constants: Mapping[str, Any], captures: Sequence[str] = ()
    ) -> OnnxPlan:
        """Plan a graph as a function of values by these names, and of the random key, which is the last one."""
        slots = {name: self.plan.new_slot() for name in (*inputs, *captures, KEY)}
        self.plan.parameters = list(slots.values())
        for name, value in constants.items():
            slots[name] = self.constant(value)
        self.nodes(graph.nodes, slots)
        self.plan.results = [slots[name] for name in graph.outputs]
        self._drop_unread()
        self.plan.finish()
        return self.plan

    def constant(self, value: Any) -> int:
        slot = self.plan.new_slot()
        self.plan.constants.append((slot, value))
        return slot

    def _drop_unread(self) -> None:
        read, kept = set(self.plan.results), []
        for step in reversed(self.plan.steps):
            if read.intersection(step.writes):
                read.update(step.reads)
                kept.append(step)
        self.plan.steps = kept[::-1]

    def nodes(self, nodes: Iterable[OnnxNode], slots: dict[str, int]) -> None:
        """Plan nodes, which read and write names."""
        for node in with_masked_rows(list(nodes)):
            self.node(node, slots)

    def node(self, node: OnnxNode, slots: dict[str, int]) -> None:
        function = self.functions.get((node.domain, node.op, node.overload))
        if function is not None:
            self.inline(function, node, slots, {})
            return
        opset = self.opsets.get(node.domain, 1)
        schema = schema_of(node, opset)
        _check_attributes(node, schema)
        _check_counts(node, schema)
        if node.op == "Constant" and not node.domain:
            slots[node.outputs[0]] = self.constant(constant_of(node))
            return
        row = RULES.get((node.domain, node.op))
        if row is None and schema is not None and schema.has_function:
            definition = _definition(schema, opset)
            self.inline(definition, node, slots, _defaults(schema))
            return
        nothing = self.constant(None)
        reads = [slots[name] if name else nothing for name in node.inputs]
        if row is not None:
            run: Any = self._rule_call(node, row, opset, schema, slots, reads)
        elif schema is not None and schema.has_context_dependent_function:
            run = _ByDefinition(node, opset, self.functions)
            reads.append(slots[KEY])
        else:
            raise unsupported(node, schema, opset)
        writes = [self.plan.new_slot() for _ in node.outputs]
        slots.update((name, slot) for name, slot in zip(node.outputs, writes, strict=True) if name)
        self.plan.steps.append(RuleStep(node.op, self.observed(node, run), tuple(reads), tuple(writes), True))

    def inner(self) -> OnnxPlanner:
        """Return a planner of a graph in this one."""
        return OnnxPlanner(self.functions, self.opsets)

    def observed(self, node: OnnxNode, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """Return the function that runs a node in the plan. (`tg.source` has one that records it.)"""
        return run

    def _rule_call(
        self, node: OnnxNode, row: OperatorRule, opset: int, schema: Any, slots: Mapping[str, int], reads: list[int]
    ) -> NodeCall:
        attributes, as_inputs = bound_attributes(node, row, schema)
        bodies = {}
        for name, graph in node.attributes.items():
            if isinstance(graph, OnnxGraph) and name in row.attributes:
                captures = graph.captures()
                inner = self.inner()
                inner_plan = inner.plan_graph(graph, [*graph.inputs], graph.initializers, captures)
                body = GraphBody(inner_plan, (), inner.draws, len(graph.outputs))
                bodies[name] = body, slice(len(reads), len(reads) + len(captures) + 1)
                reads += [slots[n] for n in captures] + [slots[KEY]]
                self.draws |= inner.draws
                attributes.pop(name, None)
        key_number = None
        if row.draws:
            self.draws, key_number = True, self._draw_count
            self._draw_count += 1
            reads.append(slots[KEY])
        if "opset" in row.attributes:
            attributes["opset"] = opset
        if "node" in row.attributes:
            attributes["node"] = node
        return NodeCall(node, row, attributes, as_inputs, bodies, len(node.inputs), opset, key_number)

    def inline(
        self, function: OnnxFunction, node: OnnxNode, slots: dict[str, int], defaults: Mapping[str, Any]
    ) -> None:
        """Plan the nodes of a function that a node calls. `defaults`: of attributes."""
        for kind in ("inputs", "outputs"):
            actual, most = len(getattr(node, kind)), len(getattr(function, kind))
            if actual > most:
                raise InvalidModelError(f"{node} has {actual} {kind}, its function {most}")
        nothing = self.constant(None)
        given = [slots[name] if name else nothing for name in node.inputs]
        inner = {KEY: slots[KEY], **dict.fromkeys(function.inputs, nothing)}
        inner.update(zip(function.inputs, given, strict=False))
        stated = {name: x for name, x in function.defaults.items() if x is not None}
        attributes = {**defaults, **stated, **node.attributes}
        outer = self.opsets
        self.opsets = {**outer, **function.opsets}
        try:
            self.nodes([with_attributes(n, attributes) for n in function.nodes], inner)
        finally:
            self.opsets = outer
        for name, result in zip(node.outputs, function.outputs, strict=False):
            if name and result not in inner:
                raise InvalidModelError(f"{node} has the result {result!r}, which its definition does not compute")
            if name:
                slots[name] = inner[result]


def with_masked_rows(nodes: list[OnnxNode]) -> list[OnnxNode]:
    """Return nodes in which each Softmax whose rows are replaced afterwards, where all of them are masked, knows that:
    else the derivative of such a row, which is not a number, would remain."""
    replaced: set[str] = set()
    for node in reversed(nodes):
        if node.op in ("Where", "IsNaN"):
            replaced.update(node.inputs[-2:])
        elif node.op in ("Cast", "CastLike", "Identity") and replaced.intersection(node.outputs):
            replaced.update(node.inputs[:1])
    return [
        replace(node, attributes={**node.attributes, "masked": 1})
        if node.op == "Softmax" and not node.domain and replaced.intersection(node.outputs) else node
        for node in nodes
    ]  # fmt: skip


def with_attributes(node: OnnxNode, given: Mapping[str, Any]) -> OnnxNode:
    """Return a node of a function with the attributes that it takes from the function's, in its graphs, too."""
    attributes = {
        name: replace(x, nodes=[with_attributes(n, given) for n in x.nodes]) if isinstance(x, OnnxGraph) else x
        for name, x in node.attributes.items()
    }
    stated = {name: given[source] for name, source in node.references.items() if given.get(source) is not None}
    message = None if node.references else node.message
    return replace(node, attributes={**attributes, **stated}, references={}, message=message)


# ---- operators -------------------------------------------------------------------------------------------------------


def schema_of(node: OnnxNode, opset: int) -> Any:
    """Return onnx's definition of an operator in a version of its domain; None if it has none."""
    try:
        return onnx.defs.get_schema(node.op, opset, node.domain)
    except onnx.defs.SchemaError:
        return None


KINDS: dict[str, type] = {"FLOAT": float, "INT": int, "STRING": str, "GRAPH": OnnxGraph, "TYPE_PROTO": ValueType}


def _check_attributes(node: OnnxNode, schema: Any) -> None:
    """Raise InvalidModelError for an attribute that is missing, or of another type than the operator's definition
    says."""
    for name, definition in (schema.attributes if schema is not None else {}).items():
        value = node.attributes.get(name)
        kind = definition.type.name
        if value is None and definition.required:
            raise InvalidModelError(f"{node} lacks its attribute {name!r}")
        if value is None:
            continue
        is_list, one = kind.endswith("S"), KINDS.get(kind.rstrip("S"))
        values = value if is_list and isinstance(value, tuple) else (value,)
        fits = isinstance(value, tuple) == is_list and (one is None or all(isinstance(v, one) for v in values))
        if not fits or (one is None and not all(isinstance(v, np.ndarray | Carried) for v in values)):
            raise InvalidModelError(f"{node} has the attribute {name!r}, which is no {kind} of ONNX")


def _check_counts(node: OnnxNode, schema: Any) -> None:
    """Raise InvalidModelError for more or fewer inputs or outputs than the operator's definition says."""
    if schema is None:
        return
    required = [i for i, x in enumerate(schema.inputs) if x.option == schema.FormalParameterOption.Single]
    missing = [i for i in required if i >= len(node.inputs) or not node.inputs[i]]
    if missing:
        raise InvalidModelError(f"{node} lacks its input {schema.inputs[missing[0]].name!r}")
    if len(node.inputs) > schema.max_input or len(node.outputs) > schema.max_output:
        raise InvalidModelError(
            f"{node} has {len(node.inputs)} inputs and {len(node.outputs)} outputs; the operator has at most"
            f" {schema.max_input} and {schema.max_output}"
        )


def _definition(schema: Any, opset: int) -> OnnxFunction:
    """Return the function by which ONNX defines an operator in a version of its domain."""
    proto = FunctionProto()
    body = schema.get_function_with_opset_version(_latest(schema.function_opset_versions, opset))
    proto.ParseFromString(body)
    return function_of(proto)


def _latest(versions: Sequence[int], opset: int) -> int:
    """Return the last of the versions up to one, else the first."""
    return max((v for v in versions if v <= opset), default=min(versions))


def unsupported(node: OnnxNode, schema: Any, opset: int) -> UnsupportedOperatorError:
    what = f"the ONNX operator {node} has no rule here"
    if schema is None:
        known = "" if node.domain else f": ONNX {onnx.__version__} does not have it in opset {opset}"
        what += known or ": the domain is not ONNX's"
    return UnsupportedOperatorError(
        f"{what}\nNothing was computed. Either replace the operator in the model by others, or add a function with its"
        " definition to the model (onnx.helper.make_function): functions are taken as they are"
    )


def bound_attributes(node: OnnxNode, row: OperatorRule, schema: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (the attributes that the rule takes, and those that are inputs of the rule)."""
    given = {**_defaults(schema), **node.attributes}
    attributes = {}
    for parameter, default in row.attributes.items():
        name = parameter.rstrip("_")
        if name in given:
            attributes[parameter] = given[name]
        elif default is inspect.Parameter.empty and name not in CONTEXT:
            raise ValueError(f"the ONNX operator {node} lacks its attribute {name!r}")
    as_inputs = {
        name: np.asarray(given[name], None if not isinstance(given[name], float) else np.float32)
        for name in row.inputs
        if name in given
    }
    return attributes, as_inputs


def _defaults(schema: Any) -> dict[str, Any]:
    """Return the values of attributes that a definition gives to those that are left out."""
    given = (schema.attributes if schema is not None else {}).items()
    return {name: attribute_value(a.default_value) for name, a in given if a.default_value.type}


def constant_of(node: OnnxNode) -> Any:
    """Return the value of a `Constant`."""
    if len(node.attributes) != 1:
        raise InvalidModelError(f"{node} has {len(node.attributes)} attributes: a constant has one, its value")
    name, value = next(iter(node.attributes.items()))
    dtypes_ = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if name in dtypes_:
        return np.asarray(value, dtypes_[name])
    return np.asarray(value, object) if name in ("value_string", "value_strings") else value


class NodeCall:
    """The function that runs a node by its rule."""

    def __init__(
        self, node: OnnxNode, row: OperatorRule, attributes: dict[str, Any], as_inputs: dict[str, np.ndarray],
        bodies: Mapping[str, tuple[GraphBody, slice]], count: int, opset: int, key_number: int | None,
    ) -> None:  # fmt: skip
        self._opset = opset
        self.node, self._row, self._attributes, self._bodies = node, row, attributes, bodies
        self._count, self._key_number = count, key_number
        self._given = [as_inputs.get(name) for name in row.inputs] if not row.variadic else []
        while self._given and self._given[-1] is None:
            self._given.pop()
        self._known = frozenset(i for i, name in enumerate(row.inputs) if name in row.known)
        self._host = registry.get("numpy")

    def __call__(self, xp: Backend, *operands: Any) -> list[Any]:
        try:
            return self._run(xp, operands)
        except Exception as error:
            values = operands[: self._count]
            raise described(error, self.node, values, schema_of(self.node, self._opset)) from error.__cause__

    def unfolded(self, xp: Backend, *operands: Any) -> list[Any]:
        """Return the results as arrays of the backend, also if all inputs are known."""
        return self._run(xp, operands, False)

    def _run(self, xp: Backend, operands: Sequence[Any], can_fold: bool = True) -> list[Any]:
        row, attributes = self._row, self._attributes
        values = list(operands[: self._count])
        for i, x in enumerate(self._given):
            if i >= len(values):
                values.append(x)
            elif values[i] is None and x is not None:
                values[i] = x
        if self._bodies:
            filled = {name: replace(body, captured=tuple(operands[k])) for name, (body, k) in self._bodies.items()}
            attributes = {**attributes, **filled}
        folds = can_fold and not row.draws and not self._bodies and all(map(is_known, values))
        is_small = folds and sum(map(_size, values)) <= SMALL and xp is not self._host
        if row.host or is_small or any(map(_is_text, values)):
            values = [self._known_value(xp, i, x) for i, x in enumerate(values)]
            with self._host.scope():
                return self._apply(self._host, values, attributes)
        if self._key_number is not None:
            key = operands[-1]
            words = [lifted(xp, np.asarray(n, np.uint32)) for n in (0, self._key_number)]
            attributes = {**attributes, "key": xp.fold_in(key, *words)}
        values = [
            self._known_value(xp, i, x) if i in self._known or (row.variadic and row.input_name(i) in row.known)
            else lifted(xp, x)
            for i, x in enumerate(values)
        ]  # fmt: skip
        return self._apply(xp, values, attributes)

    def _known_value(self, xp: Backend, i: int, x: Any) -> Any:
        try:
            return to_host(xp, x)
        except TracedValueError:
            name = self._row.input_name(i)
            raise TracedValueError(
                f"{self.node} needs the values of its input {name!r}, which a compiled program computes only later:"
                " call the program without compiling it, or make the input a constant of the model"
            ) from None

    def _apply(self, xp: Backend, values: list[Any], attributes: dict[str, Any]) -> list[Any]:
        carried = next((x.dtype for x in values if isinstance(x, Carried)), None) if self._row.moves else None
        if carried is not None:
            values = [x.array if isinstance(x, Carried) else x for x in values]
        results = self._row.fn(xp, *values, **attributes)
        listed = results if isinstance(results, list) else [results]
        listed = [np.asarray(x) if isinstance(x, np.generic) else x for x in listed]
        if carried is not None:
            listed = [Carried(x, carried) if x is not None and _holds(xp, x, carried) else x for x in listed]
        wanted = len(self.node.outputs)
        return (listed + [None] * (wanted - len(listed)))[:wanted]


def _holds(xp: Backend, x: Any, dtype: np.dtype) -> bool:
    return xp.dtype_of(x) == CARRIERS[dtype]


class _ByDefinition:
    """The function that runs a node by the operator's definition, which depends on the types of its inputs."""

    def __init__(self, node: OnnxNode, opset: int, functions: Mapping[tuple[str, str, str], OnnxFunction]) -> None:
        self.node, self._opset, self._functions = node, opset, functions
        self._plans: dict[Any, OnnxPlan] = {}

    def __call__(self, xp: Backend, *operands: Any) -> list[Any]:
        *values, key = operands
        types = tuple(_type_of(xp, x) for x in values)
        try:
            plan = self._plans.get(types)
            if plan is None:
                plan = self._plans[types] = self._planned(types)
            return plan(xp, *values, key)
        except Exception as error:
            raise described(error, self.node, values, schema_of(self.node, self._opset)) from error.__cause__

    def _planned(self, types: Sequence[Any]) -> OnnxPlan:
        schema = schema_of(self.node, self._opset)
        protos = list(map(_type_message, types))
        version = _latest(schema.context_dependent_function_opset_versions, self._opset)
        message = self.node.message if self.node.message is not None else _message(self.node)
        body = schema.get_context_dependent_function_with_opset_version(
            version, message.SerializeToString(), [t.SerializeToString() for t in protos]
        )
        proto = FunctionProto()
        proto.ParseFromString(body)
        function = function_of(proto)
        own = onnx.defs.onnx_opset_version() if self.node.domain else self._opset
        planner = OnnxPlanner(self._functions, {"": own, **function.opsets})
        names = [f"input_{i}" for i in range(len(types))]
        slots = {name: planner.plan.new_slot() for name in (*names, KEY)}
        planner.plan.parameters = list(slots.values())
        given = tuple(n if t is not None else "" for n, t in zip(names, types, strict=True))
        outputs = tuple(f"output_{i}" if name else "" for i, name in enumerate(self.node.outputs))
        call = replace(self.node, inputs=given, outputs=outputs)
        planner.inline(function, call, slots, _defaults(schema))
        nothing = planner.constant(None)
        planner.plan.results = [slots.get(f"output_{i}", nothing) for i in range(len(self.node.outputs))]
        planner.plan.finish()
        return planner.plan


def _message(node: OnnxNode) -> Any:
    """Return a node as ONNX's message."""
    attributes = {
        name: onnx.numpy_helper.from_array(x) if isinstance(x, np.ndarray) else x
        for name, x in node.attributes.items()
        if not isinstance(x, OnnxGraph)
    }
    return helper.make_node(node.op, node.inputs, node.outputs, node.name, domain=node.domain, **attributes)


def _type_of(xp: Backend, x: Any) -> Any:
    """Return (dtype, shape) of a value; for a sequence, the types of its elements."""
    if x is None:
        return None
    if isinstance(x, tuple):
        return tuple(_type_of(xp, v) for v in x)
    return (x.dtype if isinstance(x, Carried | np.ndarray) else xp.dtype_of(x), tuple(x.shape))


def _type_message(kind: Any) -> TypeProto:
    if kind is None:
        return TypeProto()
    if isinstance(kind, tuple) and (not kind or not isinstance(kind[0], np.dtype)):
        return helper.make_sequence_type_proto(_type_message(kind[0] if kind else (np.dtype(np.float32), ())))
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(kind[0]), kind[1])


def described(error: Exception, node: OnnxNode, values: Sequence[Any], schema: Any) -> Exception:
    """Return an error of a node with a note of the node and its inputs. Where inputs have other types than the operator
    takes, and for what Python raises where values are others than a rule expects (a missing key, a division by zero),
    it is an InvalidModelError."""
    if any(note.startswith(NOTE) for note in getattr(error, "__notes__", ())):
        return error
    is_unworded = isinstance(error, UNWORDED) and not isinstance(error, ValueError | NotImplementedError)
    reason = _strange_type(schema, values) if is_unworded or type(error) in (TypeError, ValueError) else None
    if reason is None and is_unworded:
        reason = f"its inputs or attributes are not those that the operator takes: {type(error).__name__}: {error}"
    if reason is not None:
        invalid = InvalidModelError(f"{node}: {reason}")
        invalid.__cause__ = error
        error = invalid
    shown = ", ".join(
        "-" if x is None else f"{getattr(x, 'dtype', type(x).__name__)}{tuple(getattr(x, 'shape', ()))}" for x in values
    )
    error.add_note(f"{NOTE} {node}, of inputs ({shown})")
    return error


def _strange_type(schema: Any, values: Sequence[Any]) -> str | None:
    """Return what is wrong with the first input whose element type the operator's definition does not have."""
    for i, x in enumerate(values):
        if schema is None or not hasattr(x, "dtype") or i >= len(schema.inputs):
            continue
        parameter = schema.inputs[i]
        dtype = np.dtype(x.dtype) if isinstance(x, np.ndarray | Carried) else None
        allowed = {name for name in parameter.types if name.startswith("tensor(")}
        if dtype is None or not allowed or _type_name(dtype) in allowed:
            continue
        return f"its input {parameter.name!r} is {dtype}, the operator takes {', '.join(sorted(allowed))}"
    return None


def _type_name(dtype: np.dtype) -> str:
    code = helper.np_dtype_to_tensor_dtype(dtype)
    return f"tensor({onnx.TensorProto.DataType.Name(code).lower()})"
