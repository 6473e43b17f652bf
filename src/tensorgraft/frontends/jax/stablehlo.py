"""A module of StableHLO (a file of `jax.export`) as a function of JAX: operation by operation in those of `jax.lax`.

JAX itself compiles such a module as it is, and so no other framework can run it. As a function it is traced as any
other: it is grafted, differentiated and written as source. Sizes that the module leaves open are numbers here, because
shapes are known whenever the function is traced.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

Values = list[Any]
RULES: dict[str, Callable[..., Any]] = {}
CALLS = {  # what calls functions and regions
    "func.call", "stablehlo.composite", "stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.mesh",
}  # fmt: skip


class UnsupportedStableHLOError(NotImplementedError):
    """Raised for an operation of StableHLO that is not known here."""


class ModuleSizeError(ValueError):
    """Raised for sizes that a module does not accept."""


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Name the file in errors of reading its module. What the bindings of MLIR raise becomes a ValueError: a module
    that their parser accepts may still lack an attribute, or have one of another type."""
    try:
        yield
    except (ModuleSizeError, UnsupportedStableHLOError) as error:
        raise type(error)(f"{path}: {error}") from None
    except (jax.errors.JaxRuntimeError, FloatingPointError, MemoryError):  # of the computation
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a file of jax.export: {type(error).__name__}: {error}") from error


def function_of(exported: Any, path: str) -> Callable[..., Any]:
    """Return a function of the arguments of a `jax.export.Exported`, which computes what it computes.

    Raises UnsupportedStableHLOError if the module has an operation without a rule, and ValueError if the module is
    broken; so does the function. Errors name `path`.
    """
    with naming(path):
        return _function(exported, path)


def _function(exported: Any, path: str) -> Callable[..., Any]:
    _, module = _module(exported)
    functions = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in module.body.operations}
    kept = exported.module_kept_var_idx
    if "main" not in functions:
        raise ValueError("its module has no function `main`")
    trees = exported.in_tree.num_leaves, exported.out_tree.num_leaves
    if trees != (len(exported.in_avals), len(exported.out_avals)):
        raise ValueError(f"its trees have {trees[0]} arguments and {trees[1]} results, its module others")
    if missing := lacking(exported):
        raise UnsupportedStableHLOError(f"{exported.fun_name}: StableHLO's {', '.join(missing)}")

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        if structure != exported.in_tree:
            raise TypeError(f"{exported.fun_name}: arguments are in {structure}, expected {exported.in_tree}")
        arrays = []
        for x, aval in zip(leaves, exported.in_avals, strict=True):
            array = jax.numpy.asarray(x)
            fits = array.ndim == len(aval.shape) and all(
                n == m
                for n, m in zip(array.shape, aval.shape, strict=True)
                if isinstance(n, int) and isinstance(m, int)
            )
            if array.dtype != aval.dtype or not fits:
                raise TypeError(
                    f"{exported.fun_name}: {array.dtype}{array.shape} is given, expected {aval.str_short()}"
                )
            arrays.append(array)
        with jax.enable_x64(True), naming(path):  # the module has dtypes of its own
            # a module for several platforms takes the number of one
            platform = [np.int32(0)] if len(exported.platforms) > 1 else []
            results = Interpreter(functions).call("main", [*map(np.asarray, platform), *(arrays[k] for k in kept)])
            return jax.tree.unflatten(exported.out_tree, results)

    call.__name__ = call.__qualname__ = exported.fun_name if exported.fun_name.isidentifier() else "exported"
    call.__signature__ = _signature(exported)  # type: ignore[attr-defined]
    call._module = module  # type: ignore[attr-defined]  # owns the operations
    return call


def _signature(exported: Any) -> inspect.Signature:
    args, kwargs = jax.tree.unflatten(exported.in_tree, [0] * exported.in_tree.num_leaves)
    parameters = [inspect.Parameter(f"x{k}", inspect.Parameter.POSITIONAL_ONLY) for k in range(len(args))]
    return inspect.Signature([*parameters, *(inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in kwargs)])


def _module(exported: Any) -> tuple[Any, Any]:
    """Return (the context of a module, the module)."""
    context = ir.Context()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    with context:
        return context, stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)


def operators(exported: Any) -> dict[str, int]:
    """Return the operations of a module, and how often each occurs."""
    context, module = _module(exported)
    counts: dict[str, int] = {}

    def count(block: Any) -> None:
        for op in block.operations:
            name = _name(op)
            counts[name] = counts.get(name, 0) + 1
            for region in op.operation.regions:
                for inner in region.blocks:
                    count(inner)

    with context:
        count(module.body)
    return {n: k for n, k in sorted(counts.items()) if n not in ("func.func", "func.return", "stablehlo.return")}


def lacking(exported: Any) -> list[str]:
    """Return the operations of a module that have no rule."""
    return [n for n in operators(exported) if n not in RULES and n not in CALLS]


def _name(op: Any) -> str:
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
        name = _name(op)
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


# ---- attributes ------------------------------------------------------------------------------------------------------


def ints(op: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of integers."""
    if name not in op.attributes:
        return default
    attribute = op.attributes[name]
    if isinstance(attribute, ir.IntegerAttr):
        return attribute.value
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return np.array(attribute)
    return [int(n) for n in attribute]


def flag(op: Any, name: str) -> bool:
    return name in op.attributes and bool(ir.BoolAttr(op.attributes[name]).value)


def kind_of_region(op: Any) -> str | None:
    """Return the operation of a region that consists of one, of both its arguments."""
    block = op.operation.regions[0].blocks[0]
    operations = [*block.operations]
    return operations[0].operation.name.partition(".")[2] if len(operations) == 2 else None


def dtype_of(type_: Any) -> np.dtype:
    """Return the dtype of a type of elements."""
    names = {"i1": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
             "complex<f32>": "complex64", "complex<f64>": "complex128"}  # fmt: skip
    text = str(type_)
    if text in names:
        return np.dtype(jax.numpy.dtype(names[text]))
    if text.startswith("ui"):
        return np.dtype(f"uint{text[2:]}")
    if text.startswith("i"):
        return np.dtype(f"int{text[1:]}")
    raise UnsupportedStableHLOError(f"elements of {text}")


def result_dtype(op: Any) -> np.dtype:
    return dtype_of(ir.RankedTensorType(op.operation.results[0].type).element_type)


def rule(*names: str) -> Callable[..., Any]:
    """Declare the rule of operations: `fn(interpreter, op, *operands)`."""

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[name if "." in name or " " in name else f"stablehlo.{name}"] = fn
        return fn

    return declare


# ---- elementwise -----------------------------------------------------------------------------------------------------

_SAME = {
    **{n: getattr(lax, n) for n in ("abs", "ceil", "floor", "imag", "real", "sign", "sqrt", "rsqrt", "cbrt", "tan",
                                     "tanh", "is_finite", "atan2", "complex", "population_count")},
    "add": lax.add, "subtract": lax.sub, "multiply": lax.mul, "divide": lax.div, "maximum": lax.max, "minimum": lax.min,
    "power": lax.pow, "remainder": lax.rem, "negate": lax.neg, "exponential": lax.exp,
    "exponential_minus_one": lax.expm1,
    "log": lax.log, "log_plus_one": lax.log1p, "logistic": lax.logistic, "cosine": lax.cos, "sine": lax.sin,
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "not": lax.bitwise_not,
    "shift_left": lax.shift_left, "shift_right_logical": lax.shift_right_logical,
    "shift_right_arithmetic": lax.shift_right_arithmetic, "count_leading_zeros": lax.clz,
    "round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "select": lambda c, x, y: lax.select(jax.numpy.broadcast_to(c, np.shape(x)), x, y),
    "clamp": lax.clamp, "optimization_barrier": lambda *xs: lax.optimization_barrier(xs),
}  # fmt: skip
_CHLO = {
    "erf": lax.erf, "erfc": lax.erfc, "erf_inv": lax.erf_inv, "lgamma": lax.lgamma, "digamma": lax.digamma,
    "acos": lax.acos,
    "acosh": lax.acosh, "asin": lax.asin, "asinh": lax.asinh, "atan": lax.atan, "atanh": lax.atanh, "cosh": lax.cosh,
    "sinh": lax.sinh, "tan": lax.tan, "square": lax.square, "next_after": lax.nextafter, "polygamma": lax.polygamma,
    "zeta": lax.zeta, "conj": lax.conj, "bessel_i1e": lax.bessel_i1e,
}  # fmt: skip
for _method, _fn in _SAME.items():
    RULES[f"stablehlo.{_method}"] = lambda _, op, *xs, fn=_fn: fn(*xs)
for _method, _fn in _CHLO.items():
    RULES[f"chlo.{_method}"] = lambda _, op, *xs, fn=_fn: fn(*xs)


@rule("compare")
def compare(_: Any, op: Any, x: Any, y: Any) -> Any:
    direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    names = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}
    return names[direction](x, y)


@rule("constant")
def constant(_: Any, op: Any) -> Any:
    attribute = op.attributes["value"]
    type_ = ir.RankedTensorType(op.operation.results[0].type)
    dtype = dtype_of(type_.element_type)
    if dtype.kind == "c":
        raise UnsupportedStableHLOError("constants of complex numbers")
    dense = ir.DenseElementsAttr(attribute)
    if dense.is_splat:
        splat = dense.get_splat_value()
        value: Any = _float(splat, dtype) if dtype.kind not in "iub" else ir.IntegerAttr(splat).value
        make = np.full if math.prod(type_.shape) <= 64 else lax.full  # known: perhaps a shape
        return make(type_.shape, value, dtype)
    if dtype.kind == "b":
        return np.array(ir.DenseIntElementsAttr(attribute)).astype(bool).reshape(type_.shape)
    values = np.array(ir.DenseIntElementsAttr(attribute) if dtype.kind in "iu" else ir.DenseFPElementsAttr(attribute))
    return values.astype(dtype).reshape(type_.shape)


def _float(attribute: Any, dtype: np.dtype) -> Any:
    return np.asarray(ir.FloatAttr(attribute).value).astype(dtype)


@rule("convert")
def convert(_: Any, op: Any, x: Any) -> Any:
    return lax.convert_element_type(x, result_dtype(op))


@rule("bitcast_convert")
def bitcast_convert(_: Any, op: Any, x: Any) -> Any:
    return lax.bitcast_convert_type(x, result_dtype(op))


@rule("reduce_precision")
def reduce_precision(_: Any, op: Any, x: Any) -> Any:
    return lax.reduce_precision(x, ints(op, "exponent_bits"), ints(op, "mantissa_bits"))


# ---- shapes ----------------------------------------------------------------------------------------------------------


def known(x: Any) -> list[int]:
    """Return a shape that is an operand."""
    if not isinstance(x, np.ndarray):
        raise UnsupportedStableHLOError("a shape that depends on values")
    return [int(n) for n in x.reshape(-1)]


@rule("reshape")
def reshape(_: Any, op: Any, x: Any) -> Any:
    return lax.reshape(x, ir.RankedTensorType(op.operation.results[0].type).shape)


@rule("dynamic_reshape")
def dynamic_reshape(_: Any, op: Any, x: Any, shape: Any) -> Any:
    return lax.reshape(x, known(shape))


@rule("broadcast_in_dim")
def broadcast_in_dim(_: Any, op: Any, x: Any) -> Any:
    shape = ir.RankedTensorType(op.operation.results[0].type).shape
    return lax.broadcast_in_dim(x, shape, ints(op, "broadcast_dimensions"))


@rule("dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(_: Any, op: Any, x: Any, shape: Any) -> Any:
    return lax.broadcast_in_dim(x, known(shape), ints(op, "broadcast_dimensions"))


@rule("transpose")
def transpose(_: Any, op: Any, x: Any) -> Any:
    return lax.transpose(x, ints(op, "permutation"))


@rule("concatenate")
def concatenate(_: Any, op: Any, *xs: Any) -> Any:
    return lax.concatenate(xs, ints(op, "dimension"))


@rule("reverse")
def reverse(_: Any, op: Any, x: Any) -> Any:
    return lax.rev(x, ints(op, "dimensions"))


@rule("slice")
def slice_(_: Any, op: Any, x: Any) -> Any:
    return lax.slice(x, ints(op, "start_indices"), ints(op, "limit_indices"), ints(op, "strides"))


@rule("real_dynamic_slice")
def real_dynamic_slice(_: Any, op: Any, x: Any, start: Any, limit: Any, stride: Any) -> Any:
    return lax.slice(x, known(start), known(limit), known(stride))


@rule("dynamic_slice")
def dynamic_slice(_: Any, op: Any, x: Any, *starts: Any) -> Any:
    return lax.dynamic_slice(x, starts, ints(op, "slice_sizes"))


@rule("dynamic_update_slice")
def dynamic_update_slice(_: Any, op: Any, x: Any, update: Any, *starts: Any) -> Any:
    return lax.dynamic_update_slice(x, update, starts)


@rule("pad")
def pad(_: Any, op: Any, x: Any, value: Any) -> Any:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return lax.pad(x, value, [*zip(*(ints(op, n) for n in names), strict=True)])


@rule("dynamic_pad")
def dynamic_pad(_: Any, op: Any, x: Any, value: Any, low: Any, high: Any, interior: Any) -> Any:
    return lax.pad(x, value, [*zip(known(low), known(high), known(interior), strict=True)])


@rule("iota")
def iota(_: Any, op: Any) -> Any:
    return lax.broadcasted_iota(result_dtype(op), ir.RankedTensorType(op.operation.results[0].type).shape,
                                ints(op, "iota_dimension"))  # fmt: skip


@rule("dynamic_iota")
def dynamic_iota(_: Any, op: Any, shape: Any) -> Any:
    return lax.broadcasted_iota(result_dtype(op), known(shape), ints(op, "iota_dimension"))


@rule("get_dimension_size")
def get_dimension_size(_: Any, op: Any, x: Any) -> Any:
    return np.asarray(np.shape(x)[ints(op, "dimension")], np.int32)


@rule("custom_call shape_assertion")
def shape_assertion(_: Any, op: Any, holds: Any, *operands: Any) -> Any:
    if isinstance(holds, np.ndarray) and not holds:
        raise ModuleSizeError(str(op.attributes["error_message"]).strip('"'))
    return []


@rule("custom_call Sharding", "custom_call annotate_device_placement")
def identity(_: Any, op: Any, x: Any) -> Any:
    return x


# ---- reductions and sorting ------------------------------------------------------------------------------------------

_REDUCTIONS: dict[str, Any] = {
    "add": lax.add, "maximum": lax.max, "minimum": lax.min, "multiply": lax.mul, "and": lax.bitwise_and,
    "or": lax.bitwise_or, "xor": lax.bitwise_xor,
}  # fmt: skip


@rule("reduce")
def reduce(interpreter: Interpreter, op: Any, *operands: Any) -> Any:
    arrays, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    kind, axes = kind_of_region(op), ints(op, "dimensions")
    if len(arrays) == 1 and kind in _REDUCTIONS:
        return lax.reduce(arrays[0], initial[0], _REDUCTIONS[kind], axes)
    if len(arrays) == 2 and len(axes) == 1 and np.issubdtype(arrays[1].dtype, np.integer):
        largest = _first_direction(op) in ("GT", "GE")  # the arg max of JAX: of values and their places
        at = (lax.argmax if largest else lax.argmin)(arrays[0], axes[0], arrays[1].dtype)
        best = jax.numpy.take_along_axis(arrays[0], jax.numpy.expand_dims(at, axes[0]), axes[0])
        return [lax.squeeze(best, axes), at]
    fn = interpreter.region(op)
    n = len(arrays)
    return lax.reduce(list(arrays), list(initial), lambda a, b: tuple(fn(*a, *b)), axes) if n > 1 else lax.reduce(
        arrays[0], initial[0], lambda a, b: fn(a, b)[0], axes)  # fmt: skip


def _first_direction(op: Any) -> str:
    for inner in op.operation.regions[0].blocks[0].operations:
        if inner.operation.name == "stablehlo.compare":
            direction = stablehlo.ComparisonDirectionAttr(inner.attributes["comparison_direction"]).value
            if direction not in ("NE", "EQ"):
                return str(direction)
    raise UnsupportedStableHLOError("a reduction of several arrays")


@rule("sort")
def sort(interpreter: Interpreter, op: Any, *operands: Any) -> Any:
    descends, axis = _first_direction(op) in ("GT", "GE"), ints(op, "dimension")
    block = op.operation.regions[0].blocks[0]
    compared = {
        ir.BlockArgument(x).arg_number for inner in block.operations for x in inner.operation.operands
        if isinstance(x.owner, ir.Block)
    }  # fmt: skip
    flipped = [lax.rev(x, [axis]) for x in operands] if descends else operands  # equal elements keep their order
    out = lax.sort(flipped, dimension=axis, num_keys=max(1, len(compared) // 2))
    return [lax.rev(x, [axis]) for x in out] if descends else out


@rule("chlo.top_k")
def top_k(_: Any, op: Any, x: Any) -> Any:
    return lax.top_k(x, ints(op, "k"))


@rule("reduce_window")
def reduce_window(_: Any, op: Any, x: Any, initial: Any) -> Any:
    kind = kind_of_region(op)
    if kind not in _REDUCTIONS:
        raise UnsupportedStableHLOError("a window with a function of its own")
    rank = np.ndim(x)
    ones = [1] * rank
    padding = ints(op, "padding", np.zeros((rank, 2), int))
    return lax.reduce_window(
        x, initial, _REDUCTIONS[kind], ints(op, "window_dimensions"), ints(op, "window_strides", ones),
        [(int(a), int(b)) for a, b in np.reshape(padding, (rank, 2))], ints(op, "base_dilations", ones),
        ints(op, "window_dilations", ones),
    )  # fmt: skip


@rule("custom_call stablehlo.dynamic_reduce_window")
def dynamic_reduce_window(interpreter: Interpreter, op: Any, x: Any, initial: Any, *shapes: Any) -> Any:
    name = ir.FlatSymbolRefAttr(ir.ArrayAttr(op.attributes["called_computations"])[0]).value
    first = next(iter(interpreter.functions[name].regions[0].blocks[0].operations))
    window, strides, base, dilation, padding = map(known, shapes)
    pairs = [(padding[k], padding[k + 1]) for k in range(0, len(padding), 2)]
    fn = _REDUCTIONS[first.operation.name.partition(".")[2]]
    return lax.reduce_window(x, initial, fn, window, strides, pairs, base, dilation)


# ---- products and indexing -------------------------------------------------------------------------------------------


@rule("dot_general")
def dot_general(_: Any, op: Any, a: Any, b: Any) -> Any:
    d = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    numbers = (
        (list(d.lhs_contracting_dimensions), list(d.rhs_contracting_dimensions)),
        (list(d.lhs_batching_dimensions), list(d.rhs_batching_dimensions)),
    )
    return lax.dot_general(a, b, numbers, preferred_element_type=result_dtype(op))


@rule("convolution")
def convolution(_: Any, op: Any, x: Any, w: Any) -> Any:
    d = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    numbers = lax.ConvDimensionNumbers(
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *d.kernel_spatial_dimensions),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    )
    ones = [1] * len(d.input_spatial_dimensions)
    padding = np.reshape(ints(op, "padding", np.zeros((len(ones), 2), int)), (len(ones), 2))
    return lax.conv_general_dilated(
        x, w, ints(op, "window_strides", ones), [(int(a), int(b)) for a, b in padding], ints(op, "lhs_dilation", ones),
        ints(op, "rhs_dilation", ones), numbers, ints(op, "feature_group_count"), ints(op, "batch_group_count"),
        preferred_element_type=result_dtype(op),
    )  # fmt: skip


@rule("gather", "dynamic_gather")
def gather(_: Any, op: Any, x: Any, indices: Any, sizes: Any = None) -> Any:
    d = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    numbers = lax.GatherDimensionNumbers(
        tuple(d.offset_dims),
        tuple(d.collapsed_slice_dims),
        tuple(d.start_index_map),
        tuple(d.operand_batching_dims),
        tuple(d.start_indices_batching_dims),
    )
    indices = _vectors_last(indices, d.index_vector_dim)
    window = ints(op, "slice_sizes") if sizes is None else known(sizes)
    return lax.gather(x, indices, numbers, tuple(map(int, window)), mode=lax.GatherScatterMode.CLIP)


def _vectors_last(indices: Any, axis: int) -> Any:
    if axis == np.ndim(indices):
        return lax.expand_dims(indices, [axis])
    return jax.numpy.moveaxis(indices, axis, -1)


@rule("scatter")
def scatter(interpreter: Interpreter, op: Any, x: Any, indices: Any, updates: Any) -> Any:
    d = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    numbers = lax.ScatterDimensionNumbers(
        tuple(d.update_window_dims), tuple(d.inserted_window_dims), tuple(d.scattered_dims_to_operand_dims),
        tuple(d.input_batching_dims),
        tuple(d.scatter_indices_batching_dims),
    )  # fmt: skip
    kinds = {
        "add": lax.scatter_add,
        "multiply": lax.scatter_mul,
        "maximum": lax.scatter_max,
        "minimum": lax.scatter_min,
    }
    kind = kind_of_region(op)
    indices = _vectors_last(indices, d.index_vector_dim)
    modes: dict[str, Any] = {"mode": lax.GatherScatterMode.FILL_OR_DROP, "unique_indices": flag(op, "unique_indices")}
    if kind in kinds:
        return kinds[kind](x, indices, updates, numbers, **modes)
    block = op.operation.regions[0].blocks[0]
    (last,) = block.operations
    if ir.BlockArgument(last.operation.operands[0]).arg_number != 1:
        raise UnsupportedStableHLOError("a scatter with a function of its own")
    return lax.scatter(x, indices, updates, numbers, **modes)


@rule("rng_bit_generator")
def rng_bit_generator(_: Any, op: Any, state: Any) -> Any:
    type_ = ir.RankedTensorType(op.operation.results[1].type)
    return lax.rng_bit_generator(state, type_.shape, dtype_of(type_.element_type))


@rule("fft")
def fft(_: Any, op: Any, x: Any) -> Any:
    kind = stablehlo.FftTypeAttr(op.attributes["fft_type"]).value
    return lax.fft(x, lax.FftType[kind], ints(op, "fft_length"))


@rule("cholesky")
def cholesky(_: Any, op: Any, x: Any) -> Any:
    return jax.lax.linalg.cholesky(x, symmetrize_input=False)


@rule("triangular_solve")
def triangular_solve(_: Any, op: Any, a: Any, b: Any) -> Any:
    kind = stablehlo.TransposeAttr(op.attributes["transpose_a"]).value
    return jax.lax.linalg.triangular_solve(
        a, b, left_side=flag(op, "left_side"), lower=flag(op, "lower"), transpose_a=kind != "NO_TRANSPOSE",
        conjugate_a=kind == "ADJOINT", unit_diagonal=flag(op, "unit_diagonal"),
    )  # fmt: skip


__all__ = ["RULES", "UnsupportedStableHLOError", "function_of", "lacking", "naming", "operators"]
