"""One run of a function of `Array`s on stand-ins, from which `tg.jit` makes a program, and the recorded uses of its
inputs."""

from __future__ import annotations

import gc
import math
import operator
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import optree

from tensorgraft.compiled.agreement import Record
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.function import Boxed, call_of, unflatten_call
from tensorgraft.compiled.objects import Template, has_objects_of_calls, tracking_new_objects
from tensorgraft.compiled.outside_calls import OutsideCalls
from tensorgraft.compiled.program import NumberInput, ProgramInputs, Source, Storages
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.surroundings import Surroundings
from tensorgraft.compiled.uncompiled import KEEPS_VALUE_OF_BODY, RunsUncompiled, results_flattened
from tensorgraft.compiled.values import exact, is_plain
from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.checks import stacked
from tensorgraft.frontends.array_api.core.devices import Device, device_of
from tensorgraft.frontends.array_api.core.traced_numbers import DTYPES, Number, Use, is_input, stand_for
from tensorgraft.frontends.array_api.transforms.jit_calls import ArrayGuards, ArrayResult, ArrayTrace, ordered_keys
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization import policy
from tensorgraft.storage import Storage

Lent = dict[int, tuple[Storage, tracing.LentCell]]  # {id of a storage that is still alive: (storage, its state)}
_cell_of = operator.attrgetter("_cell")


class ArrayTracing:
    """A traced run of `fn`.

    Arguments:
        uses: is filled with the uses of each number among the arguments; None: all numbers are constants.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        xp: Backend,
        leaves: Sequence[Any],
        structure: Any,
        objects: list[Any],
        uses: dict[int, Use] | None,
    ) -> None:
        self._fn, self._xp, self._leaves, self._structure = fn, xp, leaves, structure
        self._objects, self._uses = objects, uses
        arrays = [(i, x) for i, x in enumerate(leaves) if isinstance(x, Array)]
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
        self._outside: list[weakref.ref[Storage]] = []
        self._devices: list[Device | None] = []
        self._checks: list[str] = []
        self._surroundings = Surroundings("tensorgraft", xp)
        self._surroundings.around(fn)
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
        return ArrayGuards(
            {i: exact(self._leaves[i]) for i in looked_at},
            {i: use.bounds for i, use in (uses or {}).items() if use.bounds != (-math.inf, math.inf)},
            self._outside,
            self._surroundings if self._surroundings else None,
            ordered_keys(self._leaves),
        )

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
            capture.inputs = {id(x._cell) for x in (*self._leaves, *self._objects) if isinstance(x, Array)}
            returned = self._call(capture, is_new)
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
        stand_ins: Any = list(self._leaves)
        if self._uses is not None:
            for i, value in enumerate(self._leaves):
                if is_input(value):
                    use = self._uses[i] = Use(value, self._xp, capture)
                    stand_ins[i] = stand_for(use)
                    self._alive.append((use, weakref.ref(stand_ins[i])))
        # containers are the call's own, unless a stand-in replaces a number in them
        args, kwargs = unflatten_call(self._structure, stand_ins) if self._uses else call_of(self._leaves)
        self._world = world = Reachable([("", self._fn)], (args, kwargs))
        if world.once is not None:
            raise RunsUncompiled(f"reads {world.once}, which may differ at each call")
        self._surroundings.watch(world)
        world.is_new = is_new
        self._outside_calls = OutsideCalls()
        with self._outside_calls.watched(world.outside, attributes=world.asked):
            returned = self._fn(*args, **kwargs)
        self._outside_calls.settled()
        self._changes = world.changes()
        if world.drew():
            raise RunsUncompiled("draws random numbers of Python or NumPy")
        return returned

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
        self._outside = [weakref.ref(cell) for key, (cell, _) in lent_cells.items()
                         if key not in self._argument and key not in self._numbers]  # fmt: skip
        return [cell for cell, _ in written]

    def _source(self, cell: Storage) -> Source:
        i = self._argument.get(id(cell))
        return Source(cell if i is None else None, i)


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
