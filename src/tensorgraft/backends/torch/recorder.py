"""Recording of a program: stand-ins for tensors, whose operations become the nodes of an FX graph.

A stand-in is a tensor subclass that has a shape and no values. What PyTorch does with it below autograd is computed on
fake tensors, and noted. Tensors from outside become inputs of the graph where they meet a stand-in; operations on known
tensors alone are not seen, and computed at once. Factory functions are noted where a program is being recorded.
"""

from __future__ import annotations

import contextlib
import linecache
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import optree
import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.graph_module import _loader

from tensorgraft.backends.torch.scope import scope
from tensorgraft.errors import TracedValueError

Tensor = torch.Tensor


class _State(threading.local):
    recorder: Recorder | None = None


now = _State()


class StandIn(Tensor):
    """A stand-in for a tensor: one that is `known`, or one that the program computes."""

    known: Tensor | None
    fake: FakeTensor | None
    home: Recorder | None  # the recorder whose graph has `node`
    node: fx.Node | None

    __torch_function__ = torch.nn.Parameter.__torch_function__

    @staticmethod
    def __new__(cls, like: Tensor, tensor: Tensor | None = None) -> StandIn:
        out = Tensor._make_wrapper_subclass(
            cls,
            like.shape,
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=like.device,
        )
        out.known, out.fake, out.home, out.node = tensor, None, None, None
        return out

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"StandIn({self.dtype}, {tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if now.recorder is not None:
            return now.recorder.call(func, args, kwargs or {})
        call: Any = args, kwargs or {}
        args, kwargs = optree.tree_map(known, call, none_is_leaf=True)
        return func(*args, **kwargs)


def known(x: Any) -> Any:
    """Return the tensor that a placeholder represents. Raises TracedValueError if its value is not known."""
    if not isinstance(x, StandIn):
        return x
    if x.known is None:
        raise TracedValueError(
            f"a {x.dtype} tensor of shape {tuple(x.shape)} was created while a program was traced, and is used"
            " outside of it, where it has no values. Return it from the traced function."
        )
    return x.known


class Module(fx.GraphModule):
    """A graph module whose source is freed with it. FX keeps all sources for tracebacks for the life of the process."""

    def recompile(self) -> Any:
        code = super().recompile()
        source: Any = type(self).forward
        weakref.finalize(self, _forget, source.__code__.co_filename).atexit = False
        return code


def _forget(source: str) -> None:
    linecache.cache.pop(source, None)
    _loader.eval_cache.pop(source, None)


class Recorder:
    """One graph under way. `outer`: the recorder of the program that this graph is a branch or a loop's body of."""

    def __init__(self, outer: Recorder | None = None) -> None:
        self.graph = fx.Graph()
        self.outer = outer
        self.mode: FakeTensorMode = FakeTensorMode() if outer is None else outer.mode
        self.root: dict[str, fx.GraphModule] = {}  # sub-graphs by name
        self.inputs: list[Tensor] = []  # tensors from outside, in the order of their placeholders
        self._placeholders: dict[int, tuple[fx.Node, FakeTensor]] = {}
        self._last: fx.Node | None = None  # the last placeholder

    # ---- values ----------------------------------------------------------------------------------------------------

    def placeholder(self, x: Tensor, fake: FakeTensor) -> fx.Node:
        with self.graph.inserting_after(self._last) if self._last else self.graph.inserting_before():
            node = self.graph.placeholder(f"input_{len(self.inputs)}")
        self._last = node
        self.inputs.append(x)
        self._placeholders[id(x)] = node, fake
        return node

    def argument(self, fake: FakeTensor) -> StandIn:
        """Return a stand-in for an argument of this graph, a branch."""
        out = StandIn(fake)
        out.fake, out.home, out.node = fake, self, self.placeholder(out, fake)
        return out

    def place_of(self, x: Tensor) -> fx.Node | None:
        """Return the placeholder of a tensor, if it is an input."""
        entry = self._placeholders.get(id(x))
        return None if entry is None else entry[0]

    def fake_of(self, x: Tensor) -> FakeTensor:
        """Return the fake of any tensor that a program may read."""
        if not isinstance(x, StandIn):
            with scope():
                return self.mode.from_tensor(x.detach())
        if x.fake is None or x.fake.fake_mode is not self.mode:
            with scope():
                x.fake = self.mode.from_tensor(known(x).detach())
        return x.fake

    def lift(self, x: Tensor) -> tuple[fx.Node, FakeTensor]:
        """Return the node of a tensor, which is an input if it is from outside."""
        if isinstance(x, StandIn) and x.home is self:
            assert x.node is not None and x.fake is not None
            return x.node, x.fake
        if id(x) not in self._placeholders:
            fake = self.fake_of(x)
            self.placeholder(x, fake)
        return self._placeholders[id(x)]

    def stand_in(self, fake: FakeTensor, node: fx.Node) -> StandIn:
        out = StandIn(fake)
        out.fake, out.home, out.node = fake, self, node
        return out

    def results(self, fakes: Any, node: fx.Node) -> Any:
        """Return placeholders for the result of a node: a tensor, or a flat sequence with some."""
        if isinstance(fakes, FakeTensor):
            return self.stand_in(fakes, node)
        if isinstance(fakes, tuple | list):
            parts = [
                self.stand_in(f, self.graph.call_function(operator.getitem, (node, i)))
                if isinstance(f, FakeTensor)
                else f
                for i, f in enumerate(fakes)
            ]
            return parts if isinstance(fakes, list) else tuple(parts)
        return fakes

    # ---- operations ------------------------------------------------------------------------------------------------

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        call: Any = args, kwargs
        leaves, tree = optree.tree_flatten(call, none_is_leaf=True)
        nodes, fakes = list(leaves), list(leaves)
        for i, x in enumerate(leaves):
            if isinstance(x, Tensor):
                nodes[i], fakes[i] = self.lift(x)
        fake_args, fake_kwargs = tree.unflatten(fakes)
        try:
            with scope(), self.mode:  # a branch is called for by the program itself, in its modes
                out = func(*fake_args, **fake_kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise TracedValueError(
                f"{func} needs values while a program is being traced, and they are known only when it runs.\nUse"
                " the tensor itself (where, cond, while_loop instead of Python's if and while), or take this step"
                " out of the compiled function."
            ) from error
        node = self.graph.call_function(func, *tree.unflatten(nodes))
        if isinstance(out, FakeTensor):
            for x, fake in zip(leaves, fakes, strict=True):
                if fake is out:  # an operator that returns the tensor that it was given (and may have written)
                    return x
        return self.results(out, node)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        before, now.recorder = now.recorder, self
        try:
            yield
        finally:
            now.recorder = before

    def close(self, results: Sequence[Tensor]) -> None:
        """Make `results` the outputs; inputs that nothing depends on are dropped."""
        self.graph.output(tuple([self.lift(x)[0] for x in results]))
        for node in self.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
            node.replace_all_uses_with(node.args[0])
        # strides are those of meta functions; kernels may return others (`index`: depending on its indices)
        for node in self.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default
        self.graph.eliminate_dead_code()
        used_inputs = []
        for node, x in zip(list(self.graph.find_nodes(op="placeholder")), self.inputs, strict=True):
            if node.users:
                used_inputs.append(x)
            else:
                self.graph.erase_node(node)
        self.inputs = used_inputs

    def module(self) -> Module:
        return Module(self.root, self.graph)

    def attach(self, module: fx.GraphModule) -> fx.Node:
        """Add a node that represents a sub-graph."""
        name = f"part_{len(self.root)}"
        self.root[name] = module
        # a graph checks its attributes against the module that it is to belong to, which is made at the end
        return self.graph.create_node("get_attr", name)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Compute at once inside, though a program is being recorded."""
    before, now.recorder = now.recorder, None
    try:
        yield
    finally:
        now.recorder = before


def factory(func: Any, fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that makes tensors of nothing: `fn`, or where a program is recorded a node of the overload
    `func`."""

    def make(*args: Any, **kwargs: Any) -> Tensor:
        if torch.compiler.is_compiling() or now.recorder is None:
            return fn(*args, **kwargs)
        return now.recorder.call(func, args, kwargs)

    return make
