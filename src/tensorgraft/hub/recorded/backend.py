"""`RecordedBackend`: every method of the hub, recorded."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import optree

from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.placement import Placement
from tensorgraft.hub.recorded.graph import Figures, Graph, Node
from tensorgraft.hub.recorded.pieces import Pieces
from tensorgraft.hub.tape import ByTape
from tensorgraft.hub.wrapper import Wrapper
from tensorgraft.interrupts import held_back

_SCALARS = (bool, int, float, complex)
_MOST_CALLS = 8192  # the limit of a graph; a program that never reads a value runs in pieces of this size
_MANY = 32  # programs, after which it is said if hardly one was used twice
_SMALL = 64  # elements of host arrays that are kept on the host; larger ones move to the device at once

# Functions among the arguments may hold nodes; how large a result is may depend on values.
_AT_ONCE = frozenset({"cond", "while_loop", "scan", "map", "nonzero"})


def _operation(name: str, declared: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.replaying:
            return getattr(self.inner, name)(*args, **kwargs)
        if name in _AT_ONCE:
            return self.at_once(name, args, kwargs)
        return self.operation(name, args, kwargs)

    return method


class _Operations(ByTape, Wrapper, operation=_operation):
    pass


class RecordedBackend(_Operations):
    """A backend whose arrays are `Node`s. Operations are recorded, with the shapes, dtypes and errors of the backend
    `inner`; when a value is read, `inner` compiles and runs the recorded operations.

    Compiled graphs are found again by their structure: calls, shapes, dtypes, and which results are needed. Python
    scalars are inputs. `compile`d functions are recorded as one call each.
    """

    compiles = False  # a function is recorded with the rest, and compiled with it
    records = True

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.cold: Backend | None = None  # the cold tier of `inner`, if pieces begin in it
        self.figures = Figures()
        self._pieces = Pieces()
        self._graph = Graph()
        self._lock = threading.RLock()  # one graph for all threads
        self._local = threading.local()
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._operations: dict[Any, _Operation] = {}
        self._outcomes: dict[Any, Any] = {}
        self._pending: list[tuple[Node, Callable[[np.ndarray], None]]] = []

    # ---- recording -------------------------------------------------------------------------------------------------

    @property
    def replaying(self) -> bool:
        """Return True while the inner backend traces or runs recorded operations."""
        return getattr(self._local, "replaying", False)

    @contextlib.contextmanager
    def _replay(self) -> Iterator[None]:
        before, self._local.replaying = self.replaying, True
        try:
            yield
        finally:
            self._local.replaying = before

    def compile(self, fn: Callable[..., Any], /, donate: Sequence[int] = ()) -> Callable[..., Any]:
        inner = self.inner.compile(fn)

        def run(*args: Any) -> tuple[Array, ...]:
            return fn(*args) if self.replaying else self._record(inner, args)

        return run

    def operation(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a method of the inner backend."""
        call: Any = (args, kwargs)
        leaves: list[Any]
        leaves, structure = optree.tree_flatten(call)
        dynamic = tuple(i for i, x in enumerate(leaves) if isinstance(x, Node | np.ndarray) or self.inner.is_array(x))
        fixed = tuple((type(x), x) for i, x in enumerate(leaves) if i not in dynamic)
        key = (name, structure, dynamic, fixed)
        known = self._operations.get(key)
        if known is None:
            known = self._operations[key] = _Operation(self.inner, name, structure, dynamic, [x for _, x in fixed])
        nodes = self._record(known.run, [leaves[i] for i in dynamic])
        return optree.tree_unflatten(known.structure, nodes)

    def at_once(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a method of the inner backend now."""
        call: Any = (args, kwargs)
        settled: Any = optree.tree_map(lambda x: self.materialize(x) if isinstance(x, Node) else x, call)
        args, kwargs = settled
        with self._replay():
            out = getattr(self.inner, name)(*args, **kwargs)
        return optree.tree_map(lambda x: self.constant(x) if self.inner.is_array(x) else x, out)

    def _record(self, fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Node, ...]:
        kinds = tuple([_kind(x) for x in args])
        operands = [self._owned_copy(x) if isinstance(x, np.ndarray) else x for x in args]
        outcomes = self._outcomes.get((fn, kinds))
        if outcomes is None:
            specs = [x if k.__class__ is type else k for x, k in zip(operands, kinds, strict=True)]
            with self._replay():
                outcomes = self._outcomes[fn, kinds] = self.inner.eval_shape(fn, *specs)
        with self._lock:
            nodes = [Node(self, shape, dtype) for shape, dtype in outcomes]
            self._graph.add(fn, operands, kinds, nodes)
            self.figures.operations += 1
            if len(self._graph.calls) >= _MOST_CALLS:
                self.run()
        return tuple(nodes)

    def _owned_copy(self, x: np.ndarray) -> Any:
        """Return a host array that the caller may write later."""
        if x.size <= _SMALL:
            return x.copy()
        with self.inner.scope():
            return self.inner.asarray(x)

    def constant(self, value: Array) -> Node:
        """Return a node for an array of the inner backend."""
        return Node(self, self.inner.shape(value), self.inner.dtype_of(value), value)

    # ---- the cold tier: pieces that have not come back yet ---------------------------------------------------------

    def is_hot(self, operation: Any, /) -> bool:
        recorded = self.cold is None or self._pieces.is_hot(operation)
        if not recorded:
            self.figures.cold += 1
            if self._graph.calls:  # the program continues differently than before
                self.run()
        return recorded

    def end_of_piece(self) -> None:
        """Run the recorded operations; the next one begins another piece."""
        self._pieces.end()
        self.run()

    def flush(self) -> None:
        self.end_of_piece()
        self.run_checks()

    def lend(self, x: Array, /) -> Any | None:
        if isinstance(x, Node):
            if x.graph is not None:
                self.run()
            x = x.value
        return self.inner.lend(x)

    def adopt(self, x: np.ndarray, /) -> Array:
        array = self.inner.adopt(x)
        return array if self.replaying else self.constant(array)

    # ---- running ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Compile and run the recorded operations; their results are then known (a backend may still be computing
        them)."""
        with self._lock:
            graph, self._graph = self._graph, Graph()
            live_nodes = graph.wanted()
            if not live_nodes:
                return
            self.figures.runs += 1
            numbers = tuple(node.number for node in live_nodes)
            donated = graph.unheld()
            key = (tuple(graph.calls), tuple(graph.kinds), numbers, donated)
            leaves, graph.leaves = graph.leaves, []
            with held_back():
                try:
                    program = self._programs.get(key)
                    if program is None:
                        program = self.inner.compile(graph.program(numbers), donated)
                    with self._replay():
                        values = program(*leaves)
                except BaseException:  # an interrupt while it compiles, no memory: nothing is lost
                    graph.leaves, self._graph = leaves, graph
                    raise
                for node, value in zip(live_nodes, values, strict=True):
                    node.value, node.graph = value, None
            if key not in self._programs:
                self._programs[key] = program
                self.figures.programs += 1
                self._warn()

    def _warn(self) -> None:
        if self.figures.programs == _MANY and self.figures.runs < 2 * _MANY:
            warnings.warn(
                f"lazy mode has compiled {_MANY} programs in {self.figures.runs} runs: the recorded operations or"
                " their shapes differ nearly every time. Keep shapes the same (by padding), or leave this part of"
                " the program outside of tg.lazy().",
                stacklevel=2,
            )

    def materialize(self, x: Array, /) -> Array:
        """Return the array of the inner backend that `x` represents. It may have other references afterwards."""
        if not isinstance(x, Node):
            return x
        self._pieces.end()
        if x.graph is not None:
            self.run()
        x.shared = True
        with self._lock:
            self._graph.shared.append(x.value)
        self.run_checks()
        return x.value

    def when_known(self, x: Array, check: Callable[[np.ndarray], None], /) -> None:
        if self.replaying:
            self.inner.when_known(x, check)
        elif isinstance(x, Node) and x.graph is not None:
            self._pending.append((x, check))
        else:
            check(self.to_numpy(x))

    def run_checks(self) -> None:
        """Run the checks of values that are known by now."""
        pending, self._pending = self._pending, []
        while pending:
            node, check_value = pending.pop(0)
            if node.graph is self._graph:
                self._pending.append((node, check_value))
            elif node.graph is None:
                try:
                    check_value(self.inner.to_numpy(node.value))
                except Exception as error:
                    self._pending += pending
                    error.add_note(
                        "An operation that was recorded before this line (tg.lazy): without tg.lazy() the error is"
                        " raised where it is called."
                    )
                    raise

    def forget(self) -> None:
        """Drop the checks that are still to be made."""
        self._pending.clear()

    # ---- the backend itself ------------------------------------------------------------------------------------------

    def is_array(self, x: Any, /) -> bool:
        return isinstance(x, Node) or self.inner.is_array(x)

    def is_traced(self, x: Array, /) -> bool:
        return not isinstance(x, Node) and self.inner.is_traced(x)

    def shape(self, x: Array, /) -> tuple[int, ...]:
        return x.shape if isinstance(x, Node) else self.inner.shape(x)

    def dtype_of(self, *operands: Any) -> np.dtype:
        return self.inner.dtype_of(*operands) if self.replaying else super().dtype_of(*operands)

    def asarray(self, x: np.ndarray, /) -> Array:
        array = self.inner.asarray(x)
        return array if self.replaying else self.constant(array)

    def from_dlpack(self, x: Any, /) -> Array:
        node = self.constant(self.inner.from_dlpack(x))
        node.shared = True
        return node

    def to_numpy(self, x: Array, /) -> np.ndarray:
        return self.inner.to_numpy(self.materialize(x))

    def placement(self, x: Array, /) -> Placement | None:
        return self.inner.placement(self.materialize(x))

    def bytes_by_device(self, x: Array, /) -> dict[int, int]:
        return self.inner.bytes_by_device(self.materialize(x))

    def assembled(self, part: Array, placement: Placement, /) -> Array:
        return self.constant(self.inner.assembled(self.materialize(part), placement))

    def same_everywhere(self, action: str, arrays: Mapping[str, Array], /) -> None:
        self.inner.same_everywhere(action, {name: self.materialize(x) for name, x in arrays.items()})

    def pieces(self, x: Array, /) -> dict[tuple[int, ...], Array]:
        return {at: self.constant(piece) for at, piece in self.inner.pieces(self.materialize(x)).items()}

    def with_piece(self, x: Array, offset: tuple[int, ...], piece: np.ndarray, /) -> Array:
        return self.constant(self.inner.with_piece(self.materialize(x), offset, piece))

    def synchronize(self) -> None:
        self.end_of_piece()
        self.run_checks()
        self.inner.synchronize()


class _Operation:
    """A method of the inner backend with all arguments but its arrays, as a function of flat arrays."""

    def __init__(self, inner: Backend, name: str, structure: Any, dynamic: tuple[int, ...], fixed: list[Any]) -> None:
        self.structure: Any = None  # the structure of its results

        def run(*arrays: Any) -> tuple[Array, ...]:
            remaining, rest = iter(arrays), iter(fixed)
            leaves = [
                _array(inner, next(remaining)) if i in dynamic else next(rest) for i in range(structure.num_leaves)
            ]
            args, kwargs = optree.tree_unflatten(structure, leaves)
            outputs, self.structure = optree.tree_flatten(getattr(inner, name)(*args, **kwargs))
            return tuple(outputs)

        self.run = inner.compile(run)


def _array(xp: Backend, x: Any) -> Array:
    return xp.asarray(x) if isinstance(x, np.ndarray) else x


def _kind(x: Any) -> Any:
    """Return the part of an operand that a result depends on: shape and dtype, or the type of a Python scalar."""
    kind = x.__class__
    return kind if kind in _SCALARS else (x.shape, x.dtype)
