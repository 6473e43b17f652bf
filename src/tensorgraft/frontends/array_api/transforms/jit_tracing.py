"""One run of a function of `Array`s on stand-ins, from which `tg.jit` makes a program, and the recorded uses of its
inputs."""

from __future__ import annotations

import gc
import math
import operator
import types
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import optree

from tensorgraft.compiled.agreement import Record
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.function import Boxed, call_of, unflatten_call
from tensorgraft.compiled.instructions import compares_identities
from tensorgraft.compiled.objects import Template, has_objects_of_calls, tracking_new_objects
from tensorgraft.compiled.outside_calls import OutsideCalls
from tensorgraft.compiled.program import NumberInput, ProgramInputs, Source, Storages
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.surroundings import Surroundings
from tensorgraft.compiled.uncompiled import KEEPS_VALUE_OF_BODY, RunsUncompiled, call_traced, results_flattened
from tensorgraft.compiled.values import exact, is_plain
from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.checks import stacked
from tensorgraft.frontends.array_api.core.devices import Device, device_of
from tensorgraft.frontends.array_api.core.traced_numbers import DTYPES, Number, Use, is_input, stand_for
from tensorgraft.frontends.array_api.transforms.jit_calls import (
    ArrayGuards,
    ArrayResult,
    ArrayTrace,
    SharedArguments,
    ordered_keys,
)
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization import policy
from tensorgraft.storage import Storage

Lent = dict[int, tuple[Storage, tracing.LentCell]]  # {id of a storage that is still alive: (storage, its state)}
_cell_of = operator.attrgetter("_cell")


class ArrayTracing:
    """A traced run of `fn`.

    Arguments:
        uses: is filled with the uses of each number among the arguments; None: all numbers are constants.
        copies_arrays: call the function with copies of the arrays, to tell them from those that it reaches otherwise.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        xp: Backend,
        leaves: Sequence[Any],
        structure: Any,
        objects: list[Any],
        uses: dict[int, Use] | None,
        copies_arrays: bool = False,
    ) -> None:
        self._fn, self._xp, self._leaves, self._structure = fn, xp, leaves, structure
        self._objects, self._uses = objects, uses
        self._given = copied_arrays(leaves) if copies_arrays else leaves  # what the function is called with
        arrays = [(i, x) for i, x in enumerate(self._given) if isinstance(x, Array)]
        self._argument = {id(x._cell): i for i, x in reversed(arrays)}
        self._identical = {id(x): i for i, x in reversed(arrays)}
        self._numbers: dict[int, NumberInput] = {}  # {id of the storage of an input: the number that it represents}
        self._alive: list[tuple[Use, weakref.ref[Any]]] = []
        # known after the run
        self._world: Reachable | None = None
        self._outside_calls: OutsideCalls
        self._changes: list[Change] = []
        self._template: Template | None = None
        self._results: list[ArrayResult] = []
        self._structure_of_results: Any = None
        self._sources: dict[int, Source | NumberInput] = {}  # {id of a stand-in: its source}
        self._constants: dict[int, Any] = {}  # {id of a stand-in: the array outside}
        self._writes: list[tuple[Any, Source]] = []
        self._outside: list[Storage] = []
        self._shared: list[Storage] = []  # storages of arguments that the function reaches otherwise, too
        self.leaves_effects = False  # whether it had written or changed something where it raised an exception
        self._devices: list[Device | None] = []
        self._checks: list[str] = []
        self._surroundings = Surroundings("tensorgraft", xp)
        self._surroundings.around(fn)
        self._asks = any(compares_identities(of.__code__) for of in self._surroundings.functions())
        for leaf in leaves:
            if not (isinstance(leaf, Array | Boxed | ObjectPart) or is_plain(leaf)):
                self._surroundings.add("an argument", leaf)

    def trace(self, recorded: bool) -> ArrayTrace:
        """Run the function, and return its program. `recorded`: another trace is to be compared with it."""
        xp, surroundings = self._xp, self._surroundings
        try:
            with policy.counting_later() as notes:
                program = xp.trace(self._run)
        except Exception as error:
            surroundings.undo()
            if not self._changes:
                raise
            raise RunsUncompiled(KEEPS_VALUE_OF_BODY) from error
        finally:
            if self._world is not None:
                self._world.undo()
        world, template = self._world, self._template
        assert world is not None
        _settle_numbers(self._alive)
        surroundings.ask(self._outside_calls.asked)
        surroundings.settle(world, self._changes, lambda value: None, [fn for _, _, fn in world.methods])
        positions = {id(a): k for k, a in enumerate(program.captured)}
        # a check that fails leaves everything as it was
        donated = [] if self._checks else [positions[id(a)] for a, _ in self._writes if id(a) in positions]
        known = {**self._constants, **self._sources}
        sources = [known.get(id(a), a) for a in program.captured]
        constants = [a for a in program.captured if id(a) not in known]
        return ArrayTrace(
            record=Record(xp, program, constants, self._rest()) if recorded else None,
            backend=xp,
            run=policy.counting(program.compile(donated), notes),
            inputs=ProgramInputs(sources, [] if xp.mutable else donated, xp, _cell_of),
            written=Storages([where for _, where in self._writes], _cell_of),
            results=self._results,
            devices=self._devices,
            structure=self._structure_of_results,
            guards=self._guards(),
            checks=self._checks,
            key_objects=self._objects,
            template=template,
            finders=[] if template is None else [world.finders.get(id(x)) for x in template.old],
            changes=self._changes,
            outside_calls=self._outside_calls,
        )

    def _guards(self) -> ArrayGuards:
        uses = self._uses
        looked_at = [i for i, x in enumerate(self._leaves) if is_input(x) and (uses is None or uses[i].looked_at)]
        used = [*self._outside, *self._shared]
        return ArrayGuards(
            {i: exact(self._leaves[i]) for i in looked_at},
            {i: use.bounds for i, use in (uses or {}).items() if use.bounds != (-math.inf, math.inf)},
            list(map(weakref.ref, used)),
            self._surroundings if self._surroundings else None,
            ordered_keys(self._leaves),
            self._shared_arguments(used),
        )

    def _shared_arguments(self, used: Sequence[Storage]) -> SharedArguments | None:
        """Return the guard where it makes a difference which arguments share memory with `used`, or are which
        objects."""
        assert self._world is not None
        cells = used if self._writes or self._shared else ()
        if not (cells or self._asks or self._changes):
            return None
        outside = self._world.visited.keys() - self._world.finders.keys()
        return SharedArguments(cells, outside, bool(self._changes), self._asks, self._leaves)

    @property
    def may_take_copies(self) -> bool:
        """Return whether the trace may serve other arguments if these are told from the arrays that the function
        reaches otherwise."""
        is_placed = any(cell.placement is not None for cell in self._shared)
        return bool(self._shared) and not self._asks and isinstance(self._structure, int) and not is_placed

    @property
    def has_confused(self) -> bool:
        """Return whether the function writes, and has used an array that is an argument, too."""
        arguments = {id(x._cell) for x in self._leaves if isinstance(x, Array)}
        return bool(self._writes) and not arguments.isdisjoint(map(id, self._outside))

    def _rest(self) -> list[str]:
        """Describe the uses of the program's results, for a comparison with another trace."""
        lines = [f"result {k}: {x.new, x.argument, x.geometry}" for k, x in enumerate(self._results)]
        changes = [c for c in self._changes if not c.counts]
        return lines + [f"{c.table.name}: {c.keys} {[v for v in c.new if is_plain(v)]}" for c in changes]

    # ---- the run ---------------------------------------------------------------------------------------------------

    def _run(self) -> list[Any]:
        """Return the arrays of the program: written storages, new storages, the flags of its checks."""
        xp = self._xp
        with tracing.capturing(xp, xp, True, "jit", self._fn) as capture, tracking_new_objects() as is_new:
            capture.arguments = set(self._argument)
            capture.inputs = {id(x._cell) for x in (*self._given, *self._objects) if isinstance(x, Array)}
            try:
                returned = self._call(capture, is_new)
            except Exception:  # whatever the function raises: its effects are undone after this
                self.leaves_effects = self._has_effects(capture)
                raise
            out = self._leaves_of(returned)
            # drop references: only arrays and numbers that are still referenced count as written or read
            returned = None
            for use in (self._uses or {}).items():
                self._note_input(*use)
            for x in out:  # a result may be a view of an array that was not read
                if isinstance(x, Array) and id(x) not in self._identical:
                    capture.take(x._cell)
            x = None
            lent_cells: Lent = {id(cell): (cell, one) for one in capture.lent_cells if (cell := one.cell()) is not None}
            new = self._locate_results(out, lent_cells, capture)
            out = []
            for cell in new:  # arrays that the function makes from host values: new ones for each call
                lent_cells.pop(id(cell), None)
            written_cells = self._locate_inputs(lent_cells, capture)
            self._devices = [None if c.backend is xp else device_of(c.backend) for c in new]
            self._checks = [message for _, message in capture.checks]
            return [cell.array for cell in written_cells] + [c.array for c in new] + stacked(xp, capture.checks)

    def _call(self, capture: tracing.ArrayCapture, is_new: Callable[[Any], bool]) -> Any:
        """Call the function, with stand-ins for numbers, and record its changes."""
        stand_ins: Any = list(self._given)
        if self._uses is not None:
            for i, value in enumerate(self._leaves):
                if is_input(value):
                    use = self._uses[i] = Use(value, self._xp, capture)
                    stand_ins[i] = stand_for(use)
                    self._alive.append((use, weakref.ref(stand_ins[i])))
        call, others = call_of(self._given), Replaced()
        if self._uses:
            call = others.replace(call, unflatten_call(self._structure, stand_ins))
        args, kwargs = call
        self._world = world = Reachable([("", self._fn)], call)
        if others.are_elsewhere(world.visited):
            raise OnlyValues
        if world.once is not None:
            raise RunsUncompiled(f"reads {world.once}, which may differ at each call")
        self._surroundings.watch(world)
        world.is_new = is_new
        self._outside_calls = OutsideCalls()
        with self._outside_calls.watched(world.outside, attributes=world.asked):
            returned = call_traced(self._fn, args, kwargs)
        self._outside_calls.settled()
        self._changes = world.changes()
        if world.drew():
            raise RunsUncompiled("draws random numbers of Python or NumPy")
        return returned

    def _has_effects(self, capture: tracing.ArrayCapture) -> bool:
        """Return whether the function has written or changed something until now."""
        new = capture.new_storages
        if any(cell not in new for cell, _ in capture.written()):
            return True
        try:
            return self._world is not None and bool(self._world.changes())
        except RunsUncompiled:
            return True

    def _leaves_of(self, returned: Any) -> list[Any]:
        """Flatten the result of the function; if it contains objects, or some were changed, also their arrays."""
        world = self._world
        assert world is not None

        def is_old(x: Any) -> bool:
            return isinstance(x, Number) or id(x) in world.visited or not world.is_new(x)

        out, self._structure_of_results = results_flattened(optree.tree_flatten, returned)
        reached = world.visited, world.finders
        if self._changes or has_objects_of_calls(returned, out, is_array, is_old, *reached):
            self._template = Template((returned, [change.new for change in self._changes]), is_array, is_old)
            return list(self._template.arrays)
        return out

    def _note_input(self, i: int, use: Use) -> None:
        if use.cell is not None:
            self._numbers[id(use.cell)] = NumberInput(i, DTYPES[type(use.value)])

    def _locate_results(self, out: Sequence[Any], lent_cells: Lent, capture: tracing.ArrayCapture) -> list[Storage]:
        """Say for each result where a call takes it from. Return the storages that the function made."""
        input_indices = {id(use): i for i, use in (self._uses or {}).items()}
        new: list[Storage] = []
        for x in out:
            if isinstance(x, Number):  # the call's own number is given back
                result = ArrayResult(argument=input_indices[id(x._use)])
            elif not isinstance(x, Array):
                result = ArrayResult(value=x)
            elif not capture.holds(x._cell):
                raise ValueError(
                    f"a compiled function on {device_of(self._xp)} returns an array of a transform on {x.device}"
                )
            elif id(x) in self._identical:
                result = ArrayResult(argument=self._identical[id(x)])
            elif id(x._cell) in lent_cells and x._cell not in capture.new_storages:
                result = ArrayResult(source=self._source(x._cell), geometry=x._geometry)
            else:
                result = ArrayResult(new=_number(new, x._cell), geometry=x._geometry)
            self._results.append(result)
        return new

    def _locate_inputs(self, lent_cells: Lent, capture: tracing.ArrayCapture) -> list[Storage]:
        """Say for each stand-in where a call takes it from. Return the storages that are written."""
        self._sources = {id(one.inner_array): self._source(cell) for cell, one in lent_cells.values()}
        self._constants = {id(one.inner_array): one.array for one in capture.lent_cells}
        for one in capture.lent_cells:
            if (number := self._numbers.get(id(one.cell()))) is not None:
                self._sources[id(one.inner_array)] = number
        written = [(cell, one) for cell, one in lent_cells.values() if cell.array is not one.inner_array]
        self._writes = [(one.inner_array, self._source(cell)) for cell, one in written]
        self._outside = [cell for key, (cell, _) in lent_cells.items()
                         if key not in self._argument and key not in self._numbers]  # fmt: skip
        assert self._world is not None
        reached = {
            id(x._cell): x._cell
            for key, x in self._world.visited.items()
            if isinstance(x, Array) and key not in self._world.finders
        }
        self._shared = [reached[key] for key in self._argument if key in reached]
        return [cell for cell, _ in written]

    def _source(self, cell: Storage) -> Source:
        i = self._argument.get(id(cell))
        return Source(cell if i is None else None, i)


class OnlyValues(Exception):
    """Raised before a function is called, for containers of numbers that it also reaches in another way: copies of them
    with stand-ins would be other containers."""


class Replaced:
    """The containers of a call that are copied, because a stand-in replaces a number in them."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any]] = {}  # {id of a container: (itself, its copy)}
        self._is_twice = False

    def replace(self, old: Any, new: Any) -> Any:
        """Return `new`, where containers have the leaves that those of `old` have replaced by the same ones."""
        if old is new:
            return old
        if id(old) in self._copies:
            self._is_twice = self._is_twice or not isinstance(old, tuple)
            return self._copies[id(old)][1]
        try:
            children, form, _, make = optree.tree_flatten_one_level(old)
        except ValueError:  # a leaf
            return new
        copies = list(map(self.replace, children, optree.tree_flatten_one_level(new)[0]))
        if all(map(operator.is_, children, copies)):
            return old
        copy = make(form, copies)
        self._copies[id(old)] = old, copy
        return copy

    def are_elsewhere(self, visited: Collection[int]) -> bool:
        """Return whether one of them is in two places of the call, or among the objects `visited`, by their ids."""
        lists = (key for key, (old, _) in self._copies.items() if not isinstance(old, tuple))
        return self._is_twice or any(key in visited for key in lists)


def copied_arrays(leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves with other arrays in place of the arrays, which share memory as those do."""
    arrays = {id(x): x for x in leaves if isinstance(x, Array)}
    cells = {id(x._cell): Storage(x._cell.array, x._cell.backend) for x in arrays.values()}
    copies = {key: Array(cells[id(x._cell)], x._geometry) for key, x in arrays.items()}
    return [copies.get(id(x), x) for x in leaves]


def is_array(x: Any) -> bool:
    return isinstance(x, Array)


def is_whole(x: Any) -> bool:
    """Return True for an argument that is not flattened: functions, classes, modules, and objects of libraries."""
    return isinstance(x, _WHOLE) or type(x).__module__.partition(".")[0] in _LIBRARIES


_WHOLE = (Array, type, types.ModuleType, types.FunctionType)
_LIBRARIES = frozenset({"tensorgraft", "numpy", "ml_dtypes", "torch", "jax", "jaxlib", "tensorflow"})


class ObjectPart:
    """A leaf for a part of an object that is no array: a trace is for its value alone."""

    def __init__(self, of: Any) -> None:
        self.of = of


def _settle_numbers(alive: Sequence[tuple[Use, weakref.ref[Any]]]) -> None:
    """Classify the numbers after a trace: one that is still referenced (by a returned object, a global) needs its value
    there, which counts as reading it."""
    for use, _ in alive:
        use.capture = None
    if any(not use.looked_at and ref() is not None for use, ref in alive):
        gc.collect()
        for use, ref in alive:
            use.looked_at = use.looked_at or ref() is not None


def _number(new: list[Storage], cell: Storage) -> int:
    for k, known in enumerate(new):
        if known is cell:
            return k
    new.append(cell)
    return len(new) - 1
