"""The graph that rules write: nodes, initializers and names, in a scope that may be the body of a loop or branch."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tensorgraft.codegen.output.writing import SizeError
from tensorgraft.codegen.structure.size_merging import Extent, Quantity
from tensorgraft.codegen.structure.sizes import Sizes
from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import Var

Name = str


def element_type(dtype: Any) -> int:
    """Return the element type of ONNX for a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class GraphBuilder:
    """Nodes in order, and initializers.

    `g(x)` is the name of an array or number as an operand, `g.op("Add", a, b)` the name of a node's result. Operands
    are names, Vars, numbers of a size, or arrays of NumPy.
    """

    def __init__(
        self, opset: int, names: dict[Var, Name], run: Callable[[Any], None], reserved: Iterable[Name] = ()
    ) -> None:
        """`run` writes the calls of a body; `reserved` names are those of results."""
        self.opset, self.run = opset, run
        self.method = ""
        self.nodes: list[NodeProto] = []
        self.arrays: dict[Name, np.ndarray] = {}  # the values of large initializers
        self.names = names
        self.place = ""  # the line of the program
        self.module = ""  # the path of the module around: "/encoder/layer.0"
        self.results: Any = None  # the Vars of the call that is being written
        self.sizes = Sizes([])
        self.hint = ""
        self._used = {*names.values(), *reserved}
        self._constants: dict[Any, Name] = {}
        self._extents: dict[Any, Name] = {}

    # ---- names -----------------------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> Name:
        name, k = hint, 1
        while name in self._used:
            k += 1
            name = f"{hint}_{k}"
        self._used.add(name)
        return name

    def __call__(self, x: Any, dtype: Any = None) -> Name:
        """Return the name of an operand; a number is a constant of `dtype`."""
        if isinstance(x, str):
            return x
        if isinstance(x, Var):
            if x not in self.names:
                if x.value is None:
                    raise KeyError(f"{x} has no value here")
                self.names[x] = self.constant(np.asarray(x.value))
            return self.names[x]
        if isinstance(x, Extent):
            size = self.op("Reshape", self.extent(x), np.zeros(0, np.int64))
            return size if dtype is None or dtype == np.int64 else self.cast(size, dtype)
        if isinstance(x, Quantity):
            return self.quantity(x, dtype or dtypes.float32)
        return self.constant(np.asarray(x, dtype))

    def constant(self, value: np.ndarray, name: str = "") -> Name:
        key = (value.dtype.str, str(value.dtype), value.shape, value.tobytes()) if value.size <= 4096 else id(value)
        if name or key not in self._constants:
            own = self.fresh(name or "constant")
            self.arrays[own] = value
            self._constants[key] = own
        return self._constants[key]

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def op(self, kind: str, *operands: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node. Returns the name of its result, or a tuple of names."""
        inputs = ["" if x is None else self(x) for x in operands]
        while inputs and not inputs[-1]:
            inputs.pop()
        hints = [self.hint] if self.hint and outputs == 1 else [kind.lower()] * outputs
        results = [self.fresh(h) for h in hints]
        attributes = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(
            helper.make_node(
                kind, inputs, results, name=self.fresh(f"{self.module}/{kind}"), doc_string=self.place, **attributes
            )
        )
        return results[0] if outputs == 1 else tuple(results)

    def cast(self, x: Any, dtype: Any) -> Name:
        return str(self.op("Cast", x, to=element_type(dtype)))

    # ---- sizes -----------------------------------------------------------------------------------------------------

    def shape(self, shape: Sequence[Any]) -> Name:
        """Return a shape as an operand: int64 (n,)."""
        if not any(isinstance(n, Extent) for n in shape):
            return self.constant(np.array([int(n) for n in shape], np.int64))
        parts = [self.extent(n) if isinstance(n, Extent) else np.array([n], np.int64) for n in shape]
        return self.op("Concat", *parts, axis=0) if len(parts) > 1 else self(parts[0])

    def extent(self, n: Any) -> Name:
        """Return a size as an operand: int64 (1,)."""
        if not isinstance(n, Extent):
            return self.constant(np.array([int(n)], np.int64))
        if n.values not in self._extents:
            expression = self.sizes.expression(n)
            if expression is None:
                raise SizeError(f"a size of {n.values} has no expression in the sizes of the arguments")
            with self.hinted(""):
                self._extents[n.values] = self._integer(expression)
        return self._extents[n.values]

    def quantity(self, x: Quantity, dtype: Any) -> Name:
        """Return a number that depends on sizes, as an operand without axes."""
        expression = self.sizes.expression(x)
        if expression is None:
            raise SizeError(f"a number of {x.values} has no expression in the sizes of the arguments")
        with self.hinted(""):
            return str(self.op("Reshape", self.cast(self._real(expression), dtype), np.zeros(0, np.int64)))

    def _integer(self, e: ast.expr) -> Name:
        if isinstance(e, ast.Name):
            return e.id
        if isinstance(e, ast.Constant):
            return self.constant(np.array([e.value], np.int64))
        if isinstance(e, ast.BinOp):
            kinds = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.FloorDiv: "Div"}
            return str(self.op(kinds[type(e.op)], self._integer(e.left), self._integer(e.right)))
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            return str(self.op("Neg", self._integer(e.operand)))
        raise SizeError(f"the size {ast.unparse(e)} has no operator")

    def _real(self, e: ast.expr) -> Name:
        if isinstance(e, ast.BinOp):
            kinds = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.Pow: "Pow"}
            if type(e.op) in kinds:
                return str(self.op(kinds[type(e.op)], self._real(e.left), self._real(e.right)))
        if isinstance(e, ast.Call):  # float(n)
            return self._real(e.args[0])
        if isinstance(e, ast.Constant):
            return self.constant(np.array([e.value], np.float64))
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            return str(self.op("Neg", self._real(e.operand)))
        return self.cast(self._integer(e), np.float64)

    # ---- scopes ----------------------------------------------------------------------------------------------------

    @contextmanager
    def hinted(self, hint: str) -> Iterator[None]:
        before, self.hint = self.hint, hint
        try:
            yield
        finally:
            self.hint = before

    @contextmanager
    def scope(self) -> Iterator[list[NodeProto]]:
        """A context whose nodes are those of a body, which may use arrays from around it."""
        outer, self.nodes = self.nodes, []
        extents, constants = dict(self._extents), dict(self.names)
        try:
            yield self.nodes
        finally:
            self.nodes = outer
            self._extents = extents
            self.names = constants


def tensor_of(name: Name, value: np.ndarray) -> TensorProto:
    """Return an initializer."""
    return numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
