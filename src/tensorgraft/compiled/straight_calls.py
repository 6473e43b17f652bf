"""Straight-line code that flattens the arguments of a call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorgraft.compiled.captured_objects import Call, slots_of
from tensorgraft.compiled.values import is_scalar
from tensorgraft.hub.straight_line import NotStraight, StraightLine

_MOST = 1024  # leaves


class StraightCall(StraightLine):
    """A call in straight line, `(args, kwargs) -> results`.

    Arguments:
        call: an example.
        leaves: its leaves.
        objects: (position, form) of the objects among them, whose parts are the last leaves (`expanded`).
        sorts_keys: entries of dictionaries are leaves in the order of their keys, rather than in their own.
    """

    def __init__(
        self,
        call: Call,
        leaves: Sequence[Any],
        objects: Sequence[tuple[int, Any]] = (),
        sorts_keys: bool = True,
    ) -> None:
        super().__init__()
        self._sorts_keys = sorts_keys
        if len(leaves) > _MOST:
            raise NotStraight
        args, kwargs = call
        self.leaves: list[str] = []  # the variables that hold them
        self._arrays: dict[int, tuple[str, str, str]] = {}
        self._placed: set[int] = set()  # leaves over meshes
        self._flat: str | None = None
        self.boxed = dict(objects)  # {position: form} of leaves that are objects
        if not kwargs:
            self.require("not kwargs")
        boxed: list[tuple[str, Any, Any]] = []
        for variable, value in (*self._parts("args", args), *(self._parts("kwargs", kwargs) if kwargs else ())):
            k = len(self.leaves)
            if k < len(leaves) and k in self.boxed and leaves[k].of is value:
                boxed.append((variable, value, self.boxed[k]))
                self.leaves.append(variable)
            else:
                self._add_leaf(variable, value, leaves)
        for variable, value, form in boxed:
            members: list[str] = []
            for part, x in self._members(variable, value, form, members):
                self._add_leaf(part, x, leaves)
            if len(members) > 1:
                self.require(f"len({{{', '.join(f'id({member})' for member in members)}}}) == {len(members)}")
        if len(self.leaves) != len(leaves):
            raise NotStraight
        self._kind = leaves.__class__  # a list, or `Leaves`, which know the call
        self._box = next((leaves[k].__class__ for k in self.boxed), None)

    def _add_leaf(self, variable: str, value: Any, leaves: Sequence[Any]) -> None:
        k = len(self.leaves)
        if k < len(leaves) and leaves[k] is value:
            self.leaves.append(variable)
        elif value is None:
            self.require(f"{variable} is None")
        else:
            raise NotStraight

    def _parts(self, variable: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Flatten lists, tuples and dictionaries. Yields (variable, value) of anything else."""
        kind = value.__class__
        if kind is list or kind is tuple:
            if variable != "args":
                self.require(f"{variable}.__class__ is {kind.__name__}")
            self.require(f"len({variable}) == {len(value)}")
            for inner, x in zip(self._unpacked(variable, len(value)), value, strict=True):
                yield from self._parts(inner, x)
        elif kind is dict:
            if any(key.__class__ is not str for key in value):
                raise NotStraight
            self.require(f"{variable}.__class__ is dict and [*{variable}] == {self.name(list(value))}")
            for key in sorted(value) if self._sorts_keys else value:
                yield from self._parts(self.let(f"{variable}[{key!r}]"), value[key])
        else:
            yield variable, value

    def _unpacked(self, expression: str, count: int) -> list[str]:
        """Return the variables of so many elements of an iterable, which has no others."""
        variables = [self.variable() for _ in range(count)]
        if variables:
            self.check(f"{', '.join(variables)}, = {expression}")
        return variables

    def _members(self, variable: str, x: Any, form: Any, members: list[str]) -> Iterator[tuple[str, Any]]:
        """Write that an object has its form (`expanded`). Yields (variable, value) of its parts.

        `members`: the variables of all objects inside, in the order of the form's numbers."""
        if form == "leaf":
            yield variable, x
            return
        if form[0] == "again":
            self.require(f"{variable} is {members[form[1]]}")
            return
        members.append(variable)
        kind, forms = type(x), iter(form[1:])
        self.require(f"type({variable}) is {self.name(kind)}")
        parts: list[tuple[str, Any]] = []
        if isinstance(x, dict):
            if any(key.__class__ is not str for key in x):
                raise NotStraight
            next(forms)
            self.require(f"[*{variable}] == {self.name(list(x))}")
            parts += zip(self._unpacked(f"{variable}.values()", len(x)), x.values(), strict=True)
        elif isinstance(x, list | tuple | deque):
            self.require(f"len({variable}) == {len(x)}")
            parts += zip(self._unpacked(variable, len(x)), x, strict=True)
        elif isinstance(x, set | frozenset):
            raise NotStraight
        for part, value in parts:
            yield from self._members(part, value, next(forms), members)
        names = self._attribute_names(variable, x)
        if names:
            next(forms)
        for name in names:
            part = self.let(f"getattr({variable}, {name!r})")
            yield from self._members(part, getattr(x, name), next(forms), members)

    def _attribute_names(self, variable: str, x: Any) -> list[str]:
        """Write that an object has its attributes, and no others. Returns their names."""
        own = getattr(x, "__dict__", None)
        names = [*(own or ())]
        if own is not None:
            self.require(f"[*{variable}.__dict__] == {self.name(list(names))}")
        for name in slots_of(type(x)):
            if hasattr(x, name):
                names.append(name)
            else:
                self.require(f"not hasattr({variable}, {name!r})")
        return names

    def flattened(self) -> str:
        """Return the variable of the leaves as the other parts of a call know them."""
        if self._flat is None:
            box = self.name(self._box)
            leaves = (f"{box}({leaf})" if k in self.boxed else leaf for k, leaf in enumerate(self.leaves))
            flat = f"[{', '.join(leaves)}]"
            self._flat = self.let(flat if self._kind is list else f"{self.name(self._kind)}({flat}, (args, kwargs))")
        return self._flat

    def add_array(self, k: int, cell: str, look: str, is_placed: bool) -> None:
        """Note the variable of the storage of leaf number `k`, and the condition on the properties of its array,
        `{array}`."""
        self._arrays[k] = cell, self.let(f"{cell}.array"), look
        if is_placed:
            self._placed.add(k)

    def arrays(self) -> list[int]:
        """Return the numbers of the leaves that are arrays."""
        return list(self._arrays)

    def cell(self, k: int) -> str:
        """Return the variable of the storage of a leaf."""
        return self._arrays[k][0]

    def written_cell(self, k: int) -> str:
        """Return the variable of the storage of a leaf that the call writes."""
        if k not in self._arrays or k in self._placed:
            raise NotStraight
        return self._arrays[k][0]

    def array(self, k: int) -> str:
        """Return the variable of the array of a leaf."""
        if k not in self._arrays:
            raise NotStraight
        return self._arrays[k][1]

    def require_looks(self) -> None:
        """Write the conditions on the properties of arrays, for a program that does not check them itself."""
        for _, array, look in self._arrays.values():
            self.require(look.format(array=array))

    def call_trace(self, trace: Callable[[Any], Any]) -> None:
        """Return the result of a trace for the leaves. The written code keeps no reference to their arrays, because a
        program may take over the memory only of arrays that have no reference but their storage's."""
        self.require_looks()
        leaves = self.flattened()
        if self._arrays:
            self.do(" = ".join([array for _, array, _ in self._arrays.values()]) + " = None")
        self.do(f"return {self.name(trace)}({leaves})")

    def require_scalar(self, variable: str, value: Any) -> None:
        """Require exactly this value. Raises NotStraight for one that is compared in other ways."""
        kind = value.__class__
        if value is None or kind is bool:
            self.require(f"{variable} is {value!r}")
        elif kind is int or kind is str or (kind is float and value == value and value):
            self.require(f"{variable}.__class__ is {kind.__name__} and {variable} == {value!r}")
        elif kind is tuple:
            self.require(f"{variable}.__class__ is tuple and len({variable}) == {len(value)}")
            for inner, x in zip(self._unpacked(variable, len(value)), value, strict=True):
                self.require_scalar(inner, x)
        elif is_scalar(value) and kind is not float and kind is not complex:
            self.require(f"{variable}.__class__ is {self.name(kind)} and {variable} == {self.name(value)}")
        else:
            raise NotStraight

    def require_same(self, expression: str, value: Any) -> None:
        """Require an equal value, mostly None or the same object."""
        if value is None:
            self.require(f"{expression} is None")
        else:
            self.require(f"{expression} == {self.name(value)}")

    def require_apart(self, cells: dict[str, Any]) -> None:
        """Require that all storages, by their variables, are different ones. Raises NotStraight where some are not."""
        if len({*map(id, cells.values())}) < len(cells):
            raise NotStraight
        if len(cells) == 2:
            self.require(" is not ".join(cells))
        elif len(cells) > 2:
            self.require(f"len({{{', '.join(cells)}}}) == {len(cells)}")

    def run(self, program: Callable[..., Any], arrays: str) -> str:
        """Run a program on its arrays where all conditions hold. Returns the variable of its outputs."""
        outputs = self.variable()
        self.run_into((), program, arrays, outputs)
        return outputs

    def run_into(self, cells: Sequence[str], program: Callable[..., Any], arrays: str, outputs: str) -> None:
        """Run a program, and put its first outputs into the storages `cells`. `outputs`: the variable of its outputs,
        an empty list before. If it is not empty where an exception is raised, the program has run."""
        write = getattr(program, "write", None)
        if write is not None:
            write(self, arrays, outputs, cells)
        else:
            self.require_looks()
            self.call_program(program, arrays, outputs, cells)

    def structured(self, results: list[str], structure: Any, structure_of: Callable[[Any], Any]) -> str:
        """Return the expression of results in their structure."""
        n, flat = len(results), ", ".join(results)
        if n == 1 and structure == structure_of(0):
            return flat
        if structure == structure_of((0,) * n):
            return f"({flat},)" if n else "()"
        if structure == structure_of([0] * n):
            return f"[{flat}]"
        return f"{self.name(structure)}.unflatten([{flat}])"

    def written(self) -> Any:
        return self.function("args, kwargs")
