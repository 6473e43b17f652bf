"""Computation of functions and regions of a module, by a rule for each operation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jaxlib.mlir import ir

Values = list[Any]
RULES: dict[str, Callable[..., Any]] = {}
CALLS = {  # what calls functions and regions
    "func.call", "stablehlo.composite", "stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.mesh",
}  # fmt: skip


def rule(*names: str) -> Callable[..., Any]:
    """Declare the rule of operations: `fn(interpreter, op, *operands)`."""

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[name if "." in name or " " in name else f"stablehlo.{name}"] = fn
        return fn

    return declare


def operator_name(op: Any) -> str:
    """Return the name of an operation, of a custom call with its target."""
    name: str = op.operation.name
    if name == "stablehlo.custom_call":
        target = str(op.attributes["call_target_name"]).strip('"')
        return f"custom_call {target}"
    return name


class Interpreter:
    """Computes functions and regions of a module."""

    def __init__(self, functions: dict[str, Any]) -> None:
        self.functions = functions

    def call(self, name: str, arguments: Sequence[Any]) -> Values:
        return self.block(self.functions[name].regions[0].blocks[0], arguments, {})

    def block(self, block: Any, arguments: Sequence[Any], outer: dict[Any, Any]) -> Values:
        env = dict(outer)
        env.update(zip(map(_key, block.arguments), arguments, strict=True))
        for op in block.operations:
            operands = [env[_key(x)] for x in op.operation.operands]
            if op.operation.name in ("func.return", "stablehlo.return"):
                return operands
            results = self.operation(op, operands, env)
            env.update(zip(map(_key, op.operation.results), results, strict=True))
        raise AssertionError("a block ends with a return")

    def operation(self, op: Any, operands: Values, env: dict[Any, Any]) -> Values:
        name = operator_name(op)
        if name in ("func.call", "stablehlo.composite"):
            if name != "func.call" and str(op.attributes["name"]) == '"chlo.top_k"':
                attributes = ir.DictAttr(op.attributes["composite_attributes"])
                return list(lax.top_k(operands[0], ir.IntegerAttr(attributes["k"]).value))
            callee = op.attributes["callee" if name == "func.call" else "decomposition"]
            return self.call(ir.FlatSymbolRefAttr(callee).value, operands)
        if name == "stablehlo.while":
            condition, body = (r.blocks[0] for r in op.operation.regions)
            carried = [jax.numpy.asarray(x) for x in operands]
            out = lax.while_loop(
                lambda c: self.block(condition, c, env)[0], lambda c: self.block(body, c, env), carried
            )  # fmt: skip
            return list(out)
        if name in ("stablehlo.case", "stablehlo.if"):
            branches = [functools.partial(lambda b: self.block(b, [], env), r.blocks[0]) for r in op.operation.regions]
            if name == "stablehlo.if":
                return list(lax.cond(operands[0], *branches))
            return list(lax.switch(operands[0], branches))
        rule = RULES[name]
        known = operands and all(isinstance(x, np.ndarray) and x.size <= 64 for x in operands)
        if known and not op.operation.regions:
            with jax.ensure_compile_time_eval():
                out = rule(self, op, *operands)
                return [np.asarray(x) for x in (out if isinstance(out, list | tuple) else [out])]
        out = rule(self, op, *operands)
        return list(out) if isinstance(out, list | tuple) else [out]

    def region(self, op: Any, env: dict[Any, Any] | None = None) -> Callable[..., Any]:
        """Return the function of a region that closes over nothing."""
        block = op.operation.regions[0].blocks[0]
        return lambda *arguments: self.block(block, arguments, env or {})


def _key(value: Any) -> Any:
    """Return a key of an SSA value."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return ("argument", hash(owner), ir.BlockArgument(value).arg_number)
    return ("result", hash(owner), ir.OpResult(value).result_number)
