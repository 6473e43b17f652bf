"""Flattened calls of JAX functions, and the traces that serve all calls with the same key.

Arrays are inputs of a trace. Python numbers are inputs of weak types, as for `jax.jit`, unless the function needs their
values: it is then traced again for each value. Everything else is static.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core.primitives import convert_element_type_p

from tensorgraft.compiled.captured_objects import object_key
from tensorgraft.compiled.objects import collecting_new_objects
from tensorgraft.compiled.python_state import MOST_STATES, PythonState, meet, warn_traced_again
from tensorgraft.compiled.values import exact
from tensorgraft.frontends.jax import side_effects, traced_value_errors
from tensorgraft.frontends.jax.keys import is_key_dtype
from tensorgraft.frontends.jax.objects import Objects, ObjectsAfter, flatten, is_object
from tensorgraft.frontends.jax.staging import make_jaxpr, recording
from tensorgraft.hub import settings
from tensorgraft.hub.array import Array
from tensorgraft.precision import current

Spec = jax.ShapeDtypeStruct
Operand = Callable[[Any], tuple[Array, tuple[Any, ...]] | None]  # -> (a native array, its shape and JAX's dtype)

_NUMBERS = {int: np.int64, float: np.float64, complex: np.complex128}


def number_dtype(x: Any) -> np.dtype | None:
    """JAX's dtype for a Python number that can be an input of a trace; None for anything else."""
    wide = _NUMBERS.get(type(x))
    if wide is None:
        return None
    dtype = jax.dtypes.canonicalize_dtype(wide)
    if type(x) is int and not np.iinfo(dtype).min <= x <= np.iinfo(dtype).max:
        return None
    return dtype


class JaxCall:
    """The flattened arguments of a call: `slots` are their leaves, then the values in objects of nnx among them.

    `objects`: objects that precede the arguments, those of a module; `values`: their values, as operands.
    """

    def __init__(
        self, args: Any, kwargs: Any, operand: Operand, objects: Objects | None = None, values: Sequence[Any] = ()
    ) -> None:
        plain, self.structure = flatten((args, kwargs))
        self.names = tuple(kwargs)  # in their order, which JAX's structure does not have
        self.is_node = [is_object(x) for x in plain]
        self.objects: Objects | None = objects
        self.state_count, self.leading = len(values), 0 if objects is None else 1
        if True in self.is_node:
            nodes = [x for x, node in zip(plain, self.is_node, strict=True) if node]
            plain = [x for x, node in zip(plain, self.is_node, strict=True) if not node]
            self.objects = Objects(nodes if objects is None else [*objects.rebuild(), *nodes])
        self.count = len(plain)
        self.slots, self.operands = plain, [operand(x) for x in plain]
        if self.objects is not None:
            own_values = self.objects.values[self.state_count :]
            self.slots = [*plain, *(array for array, _ in values), *own_values]
            self.operands += [*values, *map(operand, own_values)]
        self.numbers = {i: d for i, x in enumerate(self.slots) if self.operands[i] is None and (d := number_dtype(x))}

    def key(self) -> Any:
        """Return a key of all that a trace depends on but the values of numbers."""
        marks: list[Any] = [
            o[1] if o is not None else object_key(x) for x, o in zip(self.slots, self.operands, strict=True)
        ]
        for i in self.numbers:
            marks[i] = type(self.slots[i])
        objects = None if self.objects is None else (self.objects.key, *self.is_node)
        return self.structure, self.names, objects, settings.current(), *marks

    def has_open_extents(self) -> bool:
        """Return True if the shape of an array is not fully known, because a framework traces the call."""
        return any(type(n) is not int for o in self.operands if o is not None for n in o[1][0])

    def structural(self) -> list[Any]:
        """Return the static data of the arguments' pytrees: node types and their metadata."""
        parts: list[Any] = []
        structures = [self.structure]
        while structures:
            structure = structures.pop()
            if (node := structure.node_data()) is not None:
                parts += node
                structures += structure.children()
        return parts + ([] if self.objects is None else self.objects.attributes())

    def unhashable(self) -> Any:
        """Return the first static argument that is not hashable."""
        static = (x for x, o in zip(self.slots, self.operands, strict=True) if o is None)
        return next((x for x in static if getattr(type(x), "__hash__", None) is None), None)

    def arguments(self, values: Sequence[Any]) -> tuple[Any, Any, Callable[[Sequence[Any]], ObjectsAfter] | None]:
        """Return (positional arguments, keyword arguments, a function that returns the state of objects after the
        call) with other values in the slots."""
        nodes: list[Any] = []
        outcome_of = None
        if self.objects is not None:
            nodes, outcome_of = self.objects.with_values(values[self.count :])
        plain, inner = iter(values[: self.count]), iter(nodes[self.leading :])
        leaves = [next(inner) if node else next(plain) for node in self.is_node]
        args, kwargs = jax.tree.unflatten(self.structure, leaves)
        return (*nodes[: self.leading], *args), {name: kwargs[name] for name in self.names}, outcome_of


class JaxResult(NamedTuple):
    """A leaf of a result: an "array" (its position among the arrays of the trace), an "object" (its position among the
    objects), or a "value"."""

    kind: str
    value: Any


Flat = Callable[..., list[Any]]  # a function of arrays
Stage = Callable[[Flat, list[tuple[Any, Any]]], Any]  # traces one: (function, shapes and dtypes) -> its jaxpr


def staged(flat: Flat, specs: list[tuple[Any, Any]]) -> Any:
    return make_jaxpr(flat, *[Spec(*spec) for spec in specs])


class JaxTrace:
    """A function traced for a call, in which the numbers `fixed` are constants. `surroundings`: the state of Python
    objects that the function reads; `lasts`: whether the trace serves later calls."""

    lasts = True

    def __init__(self, fn: Callable[..., Any], call: JaxCall, fixed: frozenset[int], stage: Stage = staged) -> None:
        self.inputs = [
            i for i, o in enumerate(call.operands) if o is not None or (i in call.numbers and i not in fixed)
        ]
        self.structure: Any = None
        self.results: list[JaxResult] = []
        self.objects_after: ObjectsAfter | None = None
        # the values in objects after the call, of kinds "array", "same" (the value of a slot) and "value"
        self.state: list[JaxResult] = []
        specs = [o[1] if (o := call.operands[i]) is not None else ((), call.numbers[i]) for i in self.inputs]
        self.has_numbers = any(i in call.numbers for i in self.inputs)
        trace: list[weakref.ref[Any]] = []
        numbers_seen: list[dict[int, int]] = []  # {id of a tracer: the slot of the number that it represents}

        def flat(*arrays: Any) -> list[Any]:
            trace.append(weakref.ref(recording()))
            values = list(call.slots)
            numbers_seen.append({})
            for i, x in zip(self.inputs, arrays, strict=True):
                values[i] = _number(x) if i in call.numbers else x
                if i in call.numbers:
                    numbers_seen[0][id(values[i])] = i
            try:
                return self._run(fn, call, values)
            except Exception as error:
                numbers = [i for i in self.inputs if i in call.numbers]
                raise traced_value_errors.Failed(error, numbers, self.inputs, recording()) from error

        static = [x for x, o in zip(call.slots[: call.count], call.operands, strict=False) if o is None]
        static += call.structural()
        self.surroundings = PythonState(getattr(fn, "template", fn), static, "jax")
        self.keeps: frozenset[int] = frozenset()  # the numbers that the program keeps somewhere
        try:
            with collecting_new_objects() as old_ids:
                with self.surroundings.watched():
                    self.closed = stage(flat, specs)
                left, new_ids = side_effects.arrays_left(trace[0], old_ids)
            returned = [self.structure, *(r.value for r in (*self.results, *self.state) if r.kind == "value")]
            for x, holder in side_effects.kept_arrays(left, new_ids, returned) if left else ():
                number = numbers_seen[0].get(id(x))
                if number is None:
                    side_effects.refuse_keeping(x, holder, fn)
                else:
                    self.keeps |= {number}
        except BaseException as error:
            self.surroundings.undo()
            if isinstance(error, traced_value_errors.Failed) and not error.reads_value:
                error.effects = self.surroundings.repeat
            raise
        if self.keeps:
            self.surroundings.undo()

    def _run(self, fn: Callable[..., Any], call: JaxCall, values: list[Any]) -> list[Any]:
        arrays: list[Any] = []

        def result(x: Any) -> JaxResult:
            if is_arraylike(x):
                arrays.append(jax.numpy.asarray(x))
                return JaxResult("array", len(arrays) - 1)
            return JaxResult("value", x)

        args, kwargs, outcome_of = call.arguments(values)
        with side_effects.refused((args, kwargs), fn):
            out = fn(*args, **kwargs)
        objects = (
            outcome_of is not None and not call.leading
        )  # an object that is a result may be one that is an argument
        leaves, self.structure = flatten(out) if objects else jax.tree.flatten(out)
        nodes = [x for x in leaves if objects and is_object(x)]
        order = iter(range(len(nodes)))
        self.results = [JaxResult("object", next(order)) if objects and is_object(x) else result(x) for x in leaves]
        if outcome_of is None:
            return arrays
        self.objects_after = became = outcome_of(nodes)
        before = {id(x): i for i, x in enumerate(values) if i >= call.count}
        self.state = [
            JaxResult("same", before[id(x)]) if is_arraylike(x) and id(x) in before else result(x)
            for x in became.values
        ]
        became.values = []
        changed = [k for k, r in enumerate(self.state) if r != ("same", call.count + k)]
        if call.leading and not (
            became.is_unchanged and all(self.state[k].kind == "array" for k in changed if k < call.state_count)
        ):
            side_effects.refuse_new_state(fn)
        if became.is_unchanged and not changed and not nodes:
            self.objects_after = None
        return arrays

    def finish(
        self, call: JaxCall, arrays: Sequence[Array], keep: Callable[[Array], Array], into_jax: Callable[..., jax.Array]
    ) -> tuple[Any, dict[int, Array]]:
        """Return (the results, {k: new value} of the module's values that were written) of a call, and write the new
        values of other objects. `into_jax` (array, dtype) converts an array for an object that held an array of JAX,
        `keep` for any other."""
        objects: list[Any] = []
        new_values: dict[int, Array] = {}
        if self.objects_after is not None and call.objects is not None:
            new_values = {
                k: keep(arrays[r.value]) for k, r in enumerate(self.state) if k < call.state_count and r.kind == "array"
            }
            state = []
            for k, (kind, x) in enumerate(self.state):
                old_position = self.objects_after.old[k]
                if kind == "same":
                    state.append(call.slots[x])
                elif kind == "value" or k < call.state_count:
                    state.append(x)
                elif old_position is None:  # in an object that the call has made
                    state.append(arrays[x])
                elif is_arraylike(call.slots[call.count + old_position]):
                    state.append(into_jax(arrays[x], self.closed.out_avals[x].dtype))
                else:
                    state.append(keep(arrays[x]))
            if len(call.objects.nodes) > call.leading:
                objects = call.objects.update(self.objects_after, state)
        of_kind = {"array": arrays, "object": objects}
        leaves = [x if kind == "value" else of_kind[kind][x] for kind, x in self.results]
        return jax.tree.unflatten(self.structure, leaves), new_values


def _number(x: Any) -> Any:
    """Return the tracer of a Python number with a weak type, as in `jax.jit`, and without a derivative."""
    x = jax.lax.stop_gradient(x)
    return convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


class Traces:
    """The traces of a function, a `Family` for all calls with the same key in the same region of autocast. `name`: the
    public function that traces, for messages."""

    def __init__(self, fn: Callable[..., Any], name: str = "tg.graft") -> None:
        self.fn, self.name = fn, name
        self._families: dict[Any, Family] = {}

    def family(self, call: JaxCall, name: str, expected: str) -> Family:
        """Return the family of a call. Raises TypeError for static arguments that are not hashable."""
        try:
            key = current(), call.key()
            known = self._families.get(key)
        except TypeError:
            odd = call.unhashable()
            raise TypeError(
                f"{name} got a {type(odd).__qualname__}, which is neither {expected} nor hashable: pass arrays,"
                " numbers, strings, or containers of them"
            ) from None
        if known is None:
            known = self._families[key] = Family(self.fn, self.name, call.has_open_extents())
        return known


class Family:
    """The traces for calls that differ in numbers only. If extents are open (`is_open`), every number is static."""

    def __init__(self, fn: Callable[..., Any], name: str, is_open: bool) -> None:
        self.fn, self.name, self.is_open = fn, name, is_open
        self.fixed: frozenset[int] = frozenset()  # slots of numbers whose values the function needs
        # {values of these numbers: (state of Python objects, what `make` returned), the newest first}
        self.by_values: dict[Any, tuple[tuple[PythonState, Any], ...]] = {}

    def get(self, call: JaxCall, make: Callable[[JaxTrace], Any]) -> Any:
        """Return what `make` returned for the trace that serves a call; trace the function if there is none."""
        known = self._known(call, self.fixed)
        if known is not None:
            return known
        fixed = self.fixed
        trace = self._trace(call)
        if self.fixed != fixed:
            self.by_values.clear()
        return self._add(call, self.fixed, trace, make)

    def get_open(self, call: JaxCall, stage: Stage, make: Callable[[JaxTrace], Any]) -> Any:
        """Return the same as `get` for a call with open extents; `stage` traces with symbols for these."""
        every = frozenset(call.numbers)
        known = self._known(call, every)
        if known is not None:
            return known
        try:
            trace = JaxTrace(self.fn, call, every, stage)
        except traced_value_errors.Failed as error:
            failed = error
        else:
            return self._add(call, every, trace, make)
        traced_value_errors.raise_(failed, self.name, self.fn)

    def _known(self, call: JaxCall, fixed: frozenset[int]) -> Any:
        """Return what `make` returned for an earlier trace that serves this call, or None."""
        for surroundings, program in self.by_values.get(_values(call, fixed), ()):
            if surroundings.hold():
                surroundings.repeat()
                meet(surroundings)
                return program
        return None

    def _add(self, call: JaxCall, fixed: frozenset[int], trace: JaxTrace, make: Callable[[JaxTrace], Any]) -> Any:
        why = trace.surroundings.settle()
        trace.lasts = why is None
        program = make(trace)
        meet(trace.surroundings, is_lasting=why is None)
        if why is not None:
            warn_traced_again(getattr(self.fn, "__qualname__", type(self.fn).__name__), why)
            return program
        key = _values(call, fixed)
        known = self.by_values.get(key, ())
        if len(known) == MOST_STATES // 2 and (changed := known[0][0].failure()) is not None:
            warn_traced_again(
                getattr(self.fn, "__qualname__", type(self.fn).__name__),
                f"reads what changes again and again: {changed}",
            )
        self.by_values[key] = ((trace.surroundings, program), *known[: MOST_STATES - 1])
        return program

    def _trace(self, call: JaxCall) -> JaxTrace:
        all_numbers = frozenset(call.numbers)
        while True:
            trace = self._attempt(call, self.fixed)
            if isinstance(trace, JaxTrace):
                if not trace.keeps:
                    return trace
                self.fixed |= trace.keeps
                continue
            seen_numbers = trace.numbers()
            if seen_numbers is None and not all_numbers <= self.fixed:
                # perhaps the error is of code that takes Python numbers only; if not, it is the user's
                trace = self._attempt(call, all_numbers)
                if isinstance(trace, JaxTrace):
                    self.fixed = all_numbers
                    return trace
            elif seen_numbers is not None and not seen_numbers <= self.fixed:
                self.fixed |= seen_numbers
                continue
            traced_value_errors.raise_(trace, self.name, self.fn)

    def _attempt(self, call: JaxCall, fixed: frozenset[int]) -> JaxTrace | traced_value_errors.Failed:
        try:
            return JaxTrace(self.fn, call, fixed)
        except traced_value_errors.Failed as failed:
            return failed

    def fix_all(self, call: JaxCall) -> bool:
        """Make all numbers of a call constants of later traces; return False if they were already."""
        if frozenset(call.numbers) <= self.fixed:
            return False
        self.fixed = frozenset(call.numbers)
        self.by_values.clear()
        return True


def _values(call: JaxCall, fixed: frozenset[int]) -> Any:
    """Return a key of the values of the numbers in slots `fixed`."""
    return tuple([exact(call.slots[i]) for i in sorted(fixed)])


def is_arraylike(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray) and not is_key_dtype(x.dtype)
