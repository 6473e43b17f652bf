"""A traced program of `Array`s, and how a call runs it: from the arguments' arrays to results and writes."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import optree

from tensorgraft.compiled.agreement import Record
from tensorgraft.compiled.changes import Change
from tensorgraft.compiled.function import Leaves, Report, call_of, ids_of_objects
from tensorgraft.compiled.objects import Template
from tensorgraft.compiled.outside_calls import OutsideCalls
from tensorgraft.compiled.program import ProgramInputs, Source, Storages
from tensorgraft.compiled.straight_calls import StraightCall
from tensorgraft.compiled.surroundings import Surroundings
from tensorgraft.compiled.tables import Find
from tensorgraft.compiled.values import exact, is_plain
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.checks import raise_first
from tensorgraft.frontends.array_api.core.devices import Device
from tensorgraft.frontends.array_api.core.exchange import to_device
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.straight_line import NotStraight
from tensorgraft.interrupts import all_or_none, held_back
from tensorgraft.storage import Geometry, Storage


class ArrayResult(NamedTuple):
    """A leaf of the function's result: an array on the new storage number `new`, or on an existing storage (`source`);
    the argument number `argument` itself; otherwise `value`, the same in every call."""

    new: int | None = None
    source: Source | None = None
    geometry: Geometry | None = None
    argument: int | None = None
    value: Any = None


def ordered_keys(leaves: Sequence[Any]) -> list[Any]:
    """Return the keys of the dictionaries among the arguments of a call, in their order: 1, True and 1.0 are equal, and
    so are structures with these, and dictionaries of any order."""
    if not isinstance(leaves, Leaves):
        return []
    found: list[Any] = []
    stack: list[Any] = [*leaves.call[0], *leaves.call[1].values()]
    while stack:
        x = stack.pop()
        if isinstance(x, dict):
            found.append([exact(key) if is_plain(key) else key for key in x])
            stack.extend(x.values())
        elif isinstance(x, list | tuple | deque):
            stack.extend(x)
    return found


class SharedArguments:
    """Guard for a function that writes, changes objects, or asks which are the same one: which arguments share memory
    with arrays that the function reaches otherwise, and which containers, objects and arrays are in two places."""

    def __init__(
        self, cells: Iterable[Storage], outside: Collection[int], changes: bool, asks: bool, leaves: Sequence[Any]
    ) -> None:
        """`cells`: storages that the trace has used other than as those of arguments. `outside`: ids of the objects
        that the function reaches otherwise."""
        self._cells, self._outside = {id(cell) for cell in cells}, outside
        self._changes, self._asks = changes, asks
        self._before = self._current(leaves)

    def _current(self, leaves: Sequence[Any]) -> list[Any]:
        arrays = [x for x in leaves if isinstance(x, Array)]
        shared: list[Any] = [key if (key := id(x._cell)) in self._cells else None for x in arrays]
        ids = list(map(id, arrays)) if self._asks else []
        if self._asks or self._changes:
            ids += ids_of_objects(leaves)
        return shared + [key if key in self._outside else ids.index(key) for key in ids]

    def hold(self, leaves: Sequence[Any]) -> bool:
        return self._current(leaves) == self._before

    def write(self, code: StraightCall) -> None:
        """Write the condition of `hold`."""
        if any(key is not None for key in self._before):
            code.require(f"{code.name(self.hold)}({code.flattened()})")
        elif self._cells:
            for k in code.arrays():
                code.require(f"id({code.cell(k)}) not in {code.name(self._cells)}")


@dataclass
class ArrayGuards:
    """Guards of a trace: conditions on the numbers among the arguments and on objects outside of the function."""

    numbers: dict[int, Any]  # numbers whose values the function has read, by the index of their leaf
    bounds: dict[int, tuple[float, float]]  # {other number: the range that its dtype requires}
    outside: list[weakref.ref[Storage]]  # storages that are no arguments
    surroundings: Surroundings | None
    keys: list[Any]  # keys of dictionaries among the arguments
    shared: SharedArguments | None

    def hold(self, leaves: Sequence[Any]) -> bool:
        for i, value in self.numbers.items():
            if exact(leaves[i]) != value:
                return False
        for i, (low, high) in self.bounds.items():
            if not low <= leaves[i] <= high:
                return False
        if self.keys and ordered_keys(leaves) != self.keys:
            return False
        if self.shared is not None and not self.shared.hold(leaves):
            return False
        return (self.surroundings is None or self.surroundings.hold()) and self.are_there()

    def write(self, code: StraightCall) -> None:
        """Write the conditions of `hold`."""
        for i, value in self.numbers.items():
            code.require(f"{code.name(exact)}({code.leaves[i]}) == {code.name(value)}")
        for i, (low, high) in self.bounds.items():
            code.require(f"{code.name(low)} <= {code.leaves[i]} <= {code.name(high)}")
        if self.keys:
            code.require(f"{code.name(ordered_keys)}({code.flattened()}) == {code.name(self.keys)}")
        if self.shared is not None:
            self.shared.write(code)
        if self.surroundings is not None:
            self.surroundings.write(code)
        if self.outside:
            code.require(f"{code.name(self.are_there)}()")

    def are_there(self) -> bool:
        return not self.outside or all(ref() is not None for ref in self.outside)


@dataclass
class ArrayTrace:
    """A traced program, and the storages that it reads and writes."""

    backend: Backend
    run: Callable[..., tuple[Any, ...]]
    inputs: ProgramInputs
    written: Storages
    results: list[ArrayResult]
    devices: list[Device | None]  # devices of the storages that it makes, if not the program's
    structure: Any
    guards: ArrayGuards
    checks: list[str]  # the messages of `error_if`; their flags are the program's last result
    key_objects: list[Any]  # objects that keys know by identity
    template: Template | None  # makes (results, new entries of changes), if results are objects or something is changed
    finders: list[Find | None]  # for each old object of the template: finds it in the arguments, or None if it is fixed
    changes: list[Change]
    outside_calls: OutsideCalls
    record: Record | None = None  # if another trace is to be compared with this one
    is_undone: bool = False  # the call that traced ran the function itself
    ran: bool = False

    def __post_init__(self) -> None:
        self._takes = hasattr(self.run, "takes")
        plain = not (len(self.written) or self.checks or self.backend.mutable or any(self.devices))
        plain = plain and self.template is None and not self.outside_calls
        in_order = plain and all(result.new == k for k, result in enumerate(self.results))
        # geometries of the results in new storages, if the program returns these in their order and nothing else
        self._geometries = [result.geometry for result in self.results] if in_order else None

    def __call__(self, leaves: Sequence[Any]) -> Any:
        xp = self.backend
        if self._geometries is not None:
            arrays = self._outputs(leaves)
            out = [Array(Storage(a, xp), geometry) for a, geometry in zip(arrays, self._geometries, strict=True)]
            return optree.tree_unflatten(self.structure, out)
        with held_back():
            arrays = self._outputs(leaves)
            with xp.scope():
                if self.checks:
                    raise_first(xp.to_numpy(arrays[-1]), self.checks)
                    arrays = arrays[:-1]
                try:
                    cells = [Storage(xp.ensure_owned(a) if xp.mutable else a, xp) for a in arrays[len(self.written) :]]
                    cells = [
                        cell if device is None else to_device(Array(cell), device)._cell
                        for cell, device in zip(cells, self.devices, strict=True)
                    ]
                    results = [self._leaf(result, cells, leaves) for result in self.results]
                finally:  # the arrays before may have been given up
                    all_or_none(self._write, list(zip(self.written(leaves), arrays, strict=False)))
            built = None if self.template is None else self._built(self.template, results, leaves)
            self.outside_calls.repeat(first=not (self.ran or self.is_undone))
            self.ran = True
            if self.template is not None:
                return built
        return optree.tree_unflatten(self.structure, results)

    def write(self, code: StraightCall, report: Report) -> None:
        """Write the guards, and the call."""
        self.guards.write(code)
        count = f"{code.name(report)}.calls += 1"
        try:
            cells = self._written_plainly(code)
            arrays = self.inputs.write(code)
        except NotStraight:
            code.do(count)
            code.call_trace(self)
            return
        if self._geometries is None:
            code.do(count)
            results = self._write_effects(code, arrays, cells)
            code.do(f"return {code.structured(results, self.structure, optree.tree_structure)}")
            return
        outputs = code.run(self.run, arrays)
        code.do(count)
        backend, make, store = code.name(self.backend), code.name(Array), code.name(Storage)
        results = [
            f"{make}({store}({outputs}[{k}], {backend}), {code.name(geometry)})"
            for k, geometry in enumerate(self._geometries)
        ]
        code.do(f"return {code.structured(results, self.structure, optree.tree_structure)}")

    def _written_plainly(self, code: StraightCall) -> list[str]:
        """Return the expressions of the storages in which a call puts new arrays. Raises NotStraight where it has other
        effects than that."""
        others = (self.checks, self.backend.mutable, any(self.devices), self.outside_calls, self.template is not None)
        if self._takes or any(others) or (self._geometries is None and not self.ran):
            raise NotStraight
        return self.written.write_written(code, range(len(self.written)))

    def _write_effects(self, code: StraightCall, arrays: str, cells: Sequence[str]) -> list[str]:
        """Write the call for these storages. Returns the expressions of the results."""
        backend, make, store = code.name(self.backend), code.name(Array), code.name(Storage)
        new: dict[int, str] = {}
        outputs = code.variable()
        code.do(f"{outputs} = []")
        code.run_into(cells, self.run, arrays, outputs)
        for cell in cells:
            code.do(f"{cell}.shared = False")
        for result in self.results:
            if result.new is not None and result.new not in new:
                new[result.new] = code.variable()
                code.do(f"{new[result.new]} = {store}({outputs}[{len(cells) + result.new}], {backend})")
        results = []
        for result in self.results:
            geometry = code.name(result.geometry)
            if result.new is not None:
                results.append(f"{make}({new[result.new]}, {geometry})")
            elif (source := result.source) is not None:
                cell = code.name(source.cell) if source.argument is None else code.cell(source.argument)
                results.append(f"{make}({cell}, {geometry})")
            else:
                results.append(code.name(result.value) if result.argument is None else code.leaves[result.argument])
        return results

    def _built(self, template: Template, arrays: list[Any], leaves: Sequence[Any]) -> Any:
        """Return the results made from the template, after the function's changes to objects have been applied."""
        call = call_of(leaves)
        old = [x if find is None else find(call) for x, find in zip(template.old, self.finders, strict=True)]
        out, new = template.make(arrays, old)
        located = [change.table.located(call) for change in self.changes]
        for change, of, values in zip(self.changes, located, new, strict=True):
            change.apply(of, values)
        return out

    def _outputs(self, leaves: Sequence[Any]) -> Sequence[Any]:
        return self.inputs.run(self.run, leaves) if self._takes else self.run(*self.inputs.arrays(leaves))

    def _write(self, target: tuple[Storage, Any]) -> None:
        cell, value = target
        if self.backend.mutable:
            self.backend.assign(cell.array, value)
        else:
            cell.array, cell.shared = value, False

    def _leaf(self, result: ArrayResult, cells: Sequence[Storage], leaves: Sequence[Any]) -> Any:
        if result.new is not None:
            return Array(cells[result.new], result.geometry)
        if (source := result.source) is not None:
            cell: Any = source.cell if source.argument is None else leaves[source.argument]._cell
            return Array(cell, result.geometry)
        return result.value if result.argument is None else leaves[result.argument]
