"""The nodes of a graph of ATen operators, called on tensors of the device inside a trace."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.compiled.control_flow import operators as control_flow
from tensorgraft.frontends.torch.core import pytrees, schema, state
from tensorgraft.frontends.torch.core.devices import TYPE, Slot, slot_of
from tensorgraft.frontends.torch.core.source_location import Place
from tensorgraft.frontends.torch.core.state import RandomState
from tensorgraft.frontends.torch.core.tensors import from_array, to_array
from tensorgraft.frontends.torch.dispatch import fallback
from tensorgraft.frontends.torch.graph.pure import PureCapture
from tensorgraft.frontends.torch.graph.recurrent import LAYERS
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage

Tensor = torch.Tensor


class Untraceable(Exception):
    """A node that cannot be part of a program: it asks for values, or has no kernel."""

    def __init__(self, node: Node, cause: Exception) -> None:
        super().__init__(f"{node.target}: {cause}")
        self.node, self.cause = node, cause


class GraphCapture(PureCapture):
    """The capture of a graph, whose nodes have no effects. `seed` (uint32 (2,)): of its random numbers."""

    def __init__(self, backend: Backend, seed: Array | None) -> None:
        super().__init__(backend, seed)
        self._seed = seed
        self._next = (0, 0)  # the number of the node, and of its draw
        self._repeated_draws: list[Array] = []  # the words of draws that are made once more

    def begin(self, node: int) -> None:
        """Number the following draws as those of this node, so that they do not depend on how the graph is divided."""
        self._next = (node, 0)

    def created(self, cell: Storage, location: Place | None = None) -> None:
        cell.capture = self
        self.new_storages.append(weakref.ref(cell))

    def draw(self, source: RandomState | None = None) -> Array:
        xp = self.backend
        assert self._seed is not None, "an operator without the tag nondeterministic_seeded draws random numbers"
        if self._repeated_draws:  # a later draw of the same operator has other words
            self._repeated_draws.append(xp.add(self._repeated_draws[-1], xp.asarray(np.array([0, 0, 0, 1], np.uint32))))
            return self._repeated_draws[-2]
        node, number = self._next
        self._next = (node, number + 1)
        counter = xp.asarray(np.array([node, number], np.uint32))
        return xp.concat([xp.astype(self._seed, dtypes.uint32), counter], axis=0)

    @contextlib.contextmanager
    def drawing_again(self, words: Array) -> Iterator[None]:
        """Draw the numbers once more that were drawn with these words."""
        self._repeated_draws = [words]
        try:
            yield
        finally:
            self._repeated_draws = []


def call_node(node: Node, environment: dict[Node, Any], slot: Slot) -> Any:
    """Return the value of a node on the device `slot`, given those that it needs. Raises Untraceable."""

    def value_of(a: Any) -> Any:
        if isinstance(a, Node):
            return environment[a]
        if isinstance(a, torch.device):
            if a.type == TYPE and a != slot.device:
                raise Untraceable(node, RuntimeError(f"a graph that is compiled for {slot.device} moves to {a}"))
            return slot.device
        return a

    args, kwargs = map_aggregate(node.args, value_of), map_aggregate(node.kwargs, value_of)
    target: Any = node.target
    if _takes_device(target) and not any(isinstance(a, Tensor) for a in pytrees.leaves_of(args)):
        kwargs = {**kwargs, "device": slot.device}
    for op in (target, *args):
        if isinstance(op, schema.Overload) and not _known(op):
            raise Untraceable(node, fallback.NoKernelError(schema.short_name(op)))
    if getattr(target, "__name__", "") == "with_effects":  # an error that depends on values, a line that is printed
        raise Untraceable(node, RuntimeError("an operator has effects"))
    try:
        return OWN.get(getattr(target, "__name__", ""), target)(*args, **kwargs)
    except (TracedValueError, NotImplementedError) as error:
        raise Untraceable(node, error) from error
    except Untraceable as error:  # a node of a branch
        raise Untraceable(node, error.cause) from error


def _known(op: schema.Overload) -> bool:
    """Return True for PyTorch's own operators, and for custom ones with a kernel for the device; others are opaque."""
    return op.namespace in ("aten", "prim", "prims") or schema.has_kernel(op, "PrivateUse1")


def _takes_device(target: Any) -> bool:
    return isinstance(target, schema.Overload) and "device" in schema.signature(target).names


def as_function(module: GraphModule, slot: Slot) -> Callable[..., Any]:
    """Return a branch or a loop body as a function of tensors on the device."""

    def call(*args: Any) -> Any:
        environment: dict[Node, Any] = {}
        inputs = iter(args)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                environment[node] = next(inputs)
            elif node.op == "get_attr":
                environment[node] = attribute(module, node, slot)
            elif node.op == "output":
                return map_aggregate(node.args[0], lambda a: environment[a] if isinstance(a, Node) else a)
            else:
                environment[node] = call_node(node, environment, slot)
        raise AssertionError("a graph without an output")

    return call


def attribute(module: GraphModule, node: Node, slot: Slot) -> Any:
    """Return the value of a `get_attr` node inside a trace."""
    value = attribute_of(module, node)
    if isinstance(value, GraphModule):
        return as_function(value, slot)
    return value.to(slot.device) if isinstance(value, Tensor) and value.device.type != TYPE else value


def attribute_of(module: GraphModule, node: Node) -> Any:
    value: Any = module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def draws(module: GraphModule) -> bool:
    """Return whether the graph has random operators, in branches too."""
    return any(
        torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
        for graph in modules_of(module)
        for node in graph.graph.nodes
        for target in (node.target, *node.args)
    )


def modules_of(module: GraphModule) -> Iterable[GraphModule]:
    return (m for m in module.modules() if isinstance(m, GraphModule))


# ---- operators that take functions --------------------------------------------------------------------------------


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    capture = state.now.capture
    if not isinstance(pred, Tensor) or capture is None or not capture.backend.traces:
        return (true_fn if pred else false_fn)(*operands)
    return control_flow.cond(_no_operand, pred, true_fn, false_fn, operands)


def _while_loop(cond_fn: Any, body_fn: Any, carry: Any, additional: Any, mutated_arg_indices: str = "") -> Any:
    return control_flow.while_loop(
        _no_operand, lambda *c: cond_fn(*c, *additional), lambda *c: body_fn(*c, *additional), tuple(carry)
    )


def _scan(combine_fn: Callable[..., Any], init: Any, xs: Any, additional: Any) -> list[Tensor]:
    return control_flow.compiled_scan(
        lambda carry, rows, *rest: list(combine_fn(*carry, *rows, *rest)), init, xs, False, additional
    )


def _associative_scan(combine_fn: Callable[..., Any], xs: Any, additional: Any) -> Any:
    from torch._higher_order_ops.associative_scan import generic_associative_scan

    return generic_associative_scan(combine_fn, list(xs), 0, additional)


def _no_operand(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("no operand is on the device")


def _run_and_save_rng_state(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that a backward pass computes again. Returns (its random state, its results)."""
    capture = _capture()
    words = capture.draw()
    with capture.drawing_again(words):
        return from_array(words, _slot(args, kwargs)), op(*args, **kwargs)


def _run_with_rng_state(saved: Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    with _capture().drawing_again(to_array(saved)):
        return op(*args, **kwargs)


def _capture() -> GraphCapture:
    assert isinstance(state.now.capture, GraphCapture)
    return state.now.capture


def _slot(args: Any, kwargs: Any) -> Slot:
    device = next((a.device for a in pytrees.leaves_of((args, kwargs)) if isinstance(a, Tensor)), kwargs.get("device"))
    return slot_of(device)


CONTROL_FLOW: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "associative_scan": _associative_scan,
}
OWN: dict[str, Callable[..., Any]] = {
    **LAYERS,
    **CONTROL_FLOW,
    "run_and_save_rng_state": _run_and_save_rng_state,
    "run_with_rng_state": _run_with_rng_state,
}
