"""Functions of `Array`s whose derivative is a rule: `tg.transforms.custom_vjp`, and the base of `linear_solve`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import optree

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.devices import device_of, is_device, unaliased
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.tape import TapeBackend, Variable
from tensorgraft.storage import Storage

# (arguments, result, cotangent of the result) -> one cotangent for each array of the arguments, then of the cells
Backward = Callable[[Any, Any, Any], Sequence[Array | None]]
# (arguments, result, tangents of the arrays of the arguments, tangents of the cells) -> tangent of the result
Forward = Callable[[Any, Any, Sequence[Array], Sequence[Array]], Any]


class Closed:
    """`fn(*args)` as (backend, *arrays) -> arrays, pure: of the arrays of `args`, and of the storages `cells` that `fn`
    reads from outside, in whose place it finds others."""

    def __init__(self, name: str, fn: Callable[..., Any], args: Sequence[Any], cells: Sequence[Storage] = ()) -> None:
        self.name = name
        self.fn = fn
        arguments: Any = tuple(args)
        self.leaves: list[Any]
        self.leaves, self.tree = optree.tree_flatten(arguments)
        self.positions = [i for i, x in enumerate(self.leaves) if isinstance(x, Array)]
        self.cells = list(cells)
        self.devices = [x.device for x in self.arrays]

    @property
    def arrays(self) -> list[Array]:
        """The arrays of the arguments, then those of the cells."""
        return [self.leaves[i] for i in self.positions] + [Array(cell) for cell in self.cells]

    @contextlib.contextmanager
    def placed(self, inner: Backend, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """A context with the function's arguments, made of arrays of the backend `inner`; within it the captured cells
        have arrays of that backend, too."""
        with _capturing(inner) as capture, inner.scope():
            leaves: Any = list(self.leaves)
            levels = [capture.on(device) for device in self.devices]
            for i, v, xp in zip(self.positions, values, levels, strict=False):
                leaves[i] = _array(v, xp, capture)
            captured = list(values[len(self.positions) :])
            before = [(cell.array, cell.backend, cell.capture) for cell in self.cells]
            for cell, v, xp in zip(self.cells, captured, levels[len(self.positions) :], strict=True):
                cell.array, cell.backend, cell.capture = v, xp, capture
            try:
                args: Any = optree.tree_unflatten(self.tree, leaves)
                yield args
                if capture.written() or any(cell.array is not v for cell, v in zip(self.cells, captured, strict=True)):
                    raise ValueError(f"{self.name}: the function writes an array from outside: return it instead")
            finally:
                for cell, state_before in zip(self.cells, before, strict=True):
                    cell.array, cell.backend, cell.capture = state_before

    def __call__(self, inner: Backend, *values: Any) -> tuple[Any, ...]:
        with self.placed(inner, values) as args:
            results: list[Any]
            results, self.structure = optree.tree_flatten(self.fn(*args))
            self.constants = [None if isinstance(x, Array) else x for x in results]
            self.to = [x.device if isinstance(x, Array) else None for x in results]
            return tuple([_value(x) for x in results if isinstance(x, Array)])

    def returned(self, results: Sequence[Any]) -> Any:
        """Return arrays of the current level in the structure of the result of `fn`."""
        arrays = iter(results)
        leaves = [
            c if device is None else Array(Storage(next(arrays), _level().on(device)))
            for c, device in zip(self.constants, self.to, strict=True)
        ]
        return optree.tree_unflatten(self.structure, leaves)


class _LevelCapture(tracing.ArrayCapture):
    """Arrays from any level, when they meet those of this one, become constants of it."""

    def touch(self, cell: Storage) -> None:
        if cell.capture is self:
            return
        if self.before is not None:
            self.before.reading(cell)
        inner_array, device = lifted_constant(cell.array, cell.backend, self.inner), device_of(cell.backend)
        if inner_array is None and device in self.aliases and is_device(cell.backend):
            root = self.inner
            while isinstance(root, TapeBackend):
                root = root.inner
            inner_array = lifted_constant(root.asarray(cell.backend.to_numpy(cell.array)), root, self.inner)
        if inner_array is None:
            return
        self.lent_cells.append(tracing.LentCell(weakref.ref(cell), cell.array, cell.backend, cell.capture, inner_array))
        cell.array, cell.backend, cell.capture = inner_array, self.on(device), self

    def written(self) -> list[tuple[Storage, Any]]:
        lent_cells = [(cell, lent_cell) for lent_cell in self.lent_cells if (cell := lent_cell.cell()) is not None]
        return [(cell, cell.array) for cell, lent_cell in lent_cells if cell.array is not lent_cell.inner_array]


@contextlib.contextmanager
def _capturing(inner: Backend) -> Iterator[_LevelCapture]:
    capture = _LevelCapture(inner, inner, reads=False)
    capture.before, tracing.now.capture = tracing.now.capture, capture
    try:
        yield capture
    finally:
        tracing.now.capture = capture.before
        capture.restore()


def lifted_constant(array: Any, source: Backend, target: Backend) -> Any:
    """Return an array of one level of derivatives as a constant of another; None where they are on different devices.

    Raises TypeError for an array that has a derivative at a level which the target is outside of.
    """
    above: list[Backend] = []
    at, source = unaliased(target), unaliased(source)
    while isinstance(at, TapeBackend):
        above.append(at)
        at = unaliased(at.inner)
    above.append(at)
    while not (shared := [k for k, t in enumerate(above) if _is_same_backend(source, t)]):
        if not isinstance(source, TapeBackend):
            return None
        if array.tracked:
            raise TypeError(
                "a function with a custom derivative rule reads an array from outside that is being"
                " differentiated, which the rule cannot see: make it an argument"
            )
        array, source = array.value, unaliased(source.inner)
    for _ in range(shared[0]):
        array = Variable(array)
    return array


def _is_same_backend(a: Backend, b: Backend) -> bool:
    """Return True for the same backend. PyTorch's backend inside a transform is another object for the same tensors."""
    if a is b:
        return True
    tapes = isinstance(a, TapeBackend) or isinstance(b, TapeBackend)
    return not tapes and type(a) is type(b) and (a.platform, a.index) == (b.platform, b.index)


def _array(value: Any, xp: Backend, capture: Any) -> Array:
    cell = Storage(value, xp)
    cell.capture = capture
    return Array(cell)


def _level() -> tracing.ArrayCapture:
    """Return the transform that is going on."""
    assert tracing.now.capture is not None
    return tracing.now.capture


def _value(x: Array) -> Any:
    """Return an array of the level that is going on, on whatever device the program has it."""
    if x._cell.backend is not _level().inner:
        _level().take(x._cell)
    return x._value()


# ---- functions with rules --------------------------------------------------------------------------------------------


class StorageWatch(tracing.ArrayCapture):
    """Records the storages that are read; the enclosing capture handles their uses."""

    def __init__(self, before: tracing.ArrayCapture) -> None:
        super().__init__(before.outer, before.inner, before.reads)
        self.before, self.aliases = before, before.aliases
        self.cells: dict[int, weakref.ref[Storage]] = {}

    def _note(self, cell: Storage) -> tracing.ArrayCapture:
        self.cells.setdefault(id(cell), weakref.ref(cell))
        assert self.before is not None
        return self.before

    def touch(self, cell: Storage) -> None:
        self._note(cell).touch(cell)

    def reading(self, cell: Storage) -> None:
        self._note(cell).reading(cell)

    def writing(self, cell: Storage, value: Any) -> Any:
        return self._note(cell).writing(cell, value)

    def is_input(self, cell: Storage) -> bool:
        return self._note(cell).is_input(cell)

    def note(self, cell: Storage) -> None:
        assert self.before is not None
        self.before.note(cell)


def cells_of(fn: Callable[[], Any], known: Any = (), by_value: bool = False) -> list[Storage]:
    """Return the storages from outside that `fn` reads when it is called, other than those of the arrays in `known`;
    None if no transform is in progress, since they are then not needed. `by_value`: `fn` may read values, which are
    known when it is called at the outer level; only the storages that it reads before are found."""
    before = tracing.now.capture
    if before is None:
        return []
    watch = StorageWatch(before)
    tracing.now.capture = watch
    try:
        fn()
    except TracedValueError:
        if not by_value:
            raise
    finally:
        tracing.now.capture = before
    before.checks += watch.checks
    from_outside = {id(x._cell) for x in optree.tree_leaves(known) if isinstance(x, Array)}
    # storages made inside have been freed
    alive = [cell for ref in watch.cells.values() if (cell := ref()) is not None]
    return [cell for cell in alive if id(cell) not in from_outside]


def custom_vjp(
    name: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    backward: Backward,
    forward: Forward | None = None,
    cells: Sequence[Storage] = (),
) -> Any:
    """Call `fn(*args)`, differentiated by rules. Arguments are pytrees; the rules get them on the level at which they
    are differentiated.

    Arguments:
        cells: storages from outside that `fn` reads, in which the rules have derivatives, too.
    """
    capture = tracing.now.capture
    if capture is None:
        return fn(*args)
    closed = Closed(name, fn, args, cells)
    arrays = closed.arrays
    xp = capture.inner
    for x in arrays:
        if x._cell.backend is xp:
            capture.reading(x._cell)
        else:
            capture.take(x._cell)

    def backwards(
        inner: Backend, values: Sequence[Any], results: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Any | None]:
        with closed.placed(inner, values) as inner_args:
            out, ct = closed.returned(results), closed.returned(cotangents)
            pulled_back = backward(inner_args, out, ct)
            cast = []
            for g, v in zip(pulled_back, values, strict=True):
                dtype = inner.dtype_of(v)
                cast.append(_cotangent(_value(g), dtype, inner) if g is not None else None)
            return cast

    def forwards(inner: Backend, values: Sequence[Any], results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        assert forward is not None
        with closed.placed(inner, values) as inner_args:
            levels = [_level().on(device) for device in closed.devices]
            moved = [Array(Storage(t, level)) for t, level in zip(tangents, levels, strict=True)]
            n = len(closed.positions)
            out = forward(inner_args, closed.returned(results), moved[:n], moved[n:])
            return [_value(x) for x in optree.tree_leaves(out)]

    with xp.scope():
        values = [x._value() for x in arrays]
        results = xp.custom_vjp(closed, backwards, None if forward is None else forwards, *values)
        inner_args = iter(results)
        leaves = [
            c if device is None else new_array(next(inner_args), capture.on(device))
            for c, device in zip(closed.constants, closed.to, strict=True)
        ]
    return optree.tree_unflatten(closed.structure, leaves)


def _cotangent(g: Any, dtype: Any, xp: Backend) -> Any:
    """Return a cotangent in the dtype of its argument: of a real argument, the real part."""
    if dtypes.is_complex(xp.dtype_of(g)) and not dtypes.is_complex(dtype):
        g = xp.real(g)
    return g if xp.dtype_of(g) == dtype else xp.astype(g, dtype)


def cotangents_of(
    fn: Callable[..., Any], args: Sequence[Any], cotangent: Any, cells: Sequence[Storage] = ()
) -> list[Array | None]:
    """Inside a rule: `cotangent` pulled back through `fn(*args)` to each array of the arguments, then to the cells;
    None for arrays that have no derivative."""
    closed = Closed("a rule", fn, args, cells)
    xp, values, smooth = _at_inner_level(closed)
    run = _of_smooth(closed, values, smooth)
    results, pullback = xp.vjp(run, *[values[k] for k in smooth])
    leaves: list[Any] = optree.tree_leaves(cotangent)
    seeds = [_cotangent(_value(c), xp.dtype_of(r), xp) for c, r in zip(leaves, results, strict=True)]
    cotangents = dict(zip(smooth, pullback(seeds), strict=True))
    return [
        Array(Storage(cotangents[k], _level().on(device))) if k in cotangents else None
        for k, device in enumerate(closed.devices)
    ]


def tangent_of(
    fn: Callable[..., Any],
    args: Sequence[Any],
    tangents: Sequence[Array],
    cells: Sequence[Storage] = (),
    of_cells: Sequence[Array] = (),
) -> Any:
    """Inside a rule: the tangent of `fn(*args)`."""
    closed = Closed("a rule", fn, args, cells)
    xp, values, smooth = _at_inner_level(closed)
    directions = [_value(t) for t in (*tangents, *of_cells)]
    run = _of_smooth(closed, values, smooth)
    _, out = xp.jvp(run, [values[k] for k in smooth], [directions[k] for k in smooth])
    return closed.returned(out)


def _at_inner_level(closed: Closed) -> tuple[Backend, list[Any], list[int]]:
    xp = _level().inner
    values = [_value(x) for x in closed.arrays]
    return xp, values, [k for k, v in enumerate(values) if dtypes.is_inexact(xp.dtype_of(v))]


def _of_smooth(closed: Closed, values: Sequence[Any], smooth: Sequence[int]) -> Callable[..., tuple[Any, ...]]:
    """Return the function of those arrays alone that have derivatives."""

    def run(inner: Backend, *smooth_values: Any) -> tuple[Any, ...]:
        replaced = dict(zip(smooth, smooth_values, strict=True))
        return closed(inner, *[replaced[k] if k in replaced else inner.lifted(v) for k, v in enumerate(values)])

    return run
