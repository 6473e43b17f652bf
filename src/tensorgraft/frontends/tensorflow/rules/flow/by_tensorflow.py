"""Operations that TensorFlow computes itself, on the host: strings, functions of Python, printing, sets, and searches
that are made of branches.

Where the operands have values, the operation is run at once. Where they are being traced, strings wait (`TracedText`)
for the operation that shows them, which becomes a call of the host, in the order of the program, and functions of
Python become one, too, if the shapes of their results are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.tensorflow.function_graphs import operation_of
from tensorgraft.frontends.tensorflow.graph import GraphNode
from tensorgraft.frontends.tensorflow.operation import EagerOperation
from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.rules.flow.hosted import call_host, on_the_host, specs_of
from tensorgraft.frontends.tensorflow.values import TracedText, is_known, on_strings
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# operations that take strings or numbers; some give strings, some numbers
STRINGS = (
    "AsString", "DecodeBase64", "EditDistance", "EncodeBase64", "Fingerprint", "ReduceJoin", "RegexFullMatch",
    "RegexReplace", "StaticRegexFullMatch", "StaticRegexReplace", "StringFormat", "StringJoin", "StringLength",
    "StringLower", "StringNGrams", "StringSplit", "StringSplitV2", "StringStrip", "StringToHashBucket",
    "StringToHashBucketFast", "StringToHashBucketStrong", "StringToNumber", "StringUpper", "Substr", "UnicodeDecode",
    "UnicodeDecodeWithOffsets", "UnicodeEncode", "UnicodeScript", "UnicodeTranscode", "UnsortedSegmentJoin",
)  # fmt: skip
FUNCTIONS = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
SEARCHES = (
    "CTCBeamSearchDecoder", "CTCGreedyDecoder", "ExtractGlimpse", "ExtractGlimpseV2", "IsotonicRegression",
    "SobolSample",
)  # fmt: skip
SETS = (
    "DenseToDenseSetOperation", "DenseToSparseSetOperation", "RaggedCross", "SetSize", "SparseCross",
    "SparseCrossHashed", "SparseCrossV2", "SparseToSparseSetOperation",
)  # fmt: skip
# kernels of the CPU whose results have shapes that depend on values, or that go through rows one after the other
KERNELS = (
    "CombinedNonMaxSuppression", "ComputeAccidentalHits", "DenseCountSparseOutput", "DrawBoundingBoxes",
    "DrawBoundingBoxesV2", "DynamicPartition", "FractionalAvgPoolGrad", "FractionalMaxPoolGrad", "ListDiff",
    "NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3", "NonMaxSuppressionV4",
    "NonMaxSuppressionV5", "NonMaxSuppressionWithOverlaps", "RaggedCountSparseOutput", "RaggedFillEmptyRows",
    "RaggedFillEmptyRowsGrad", "RaggedGather", "RaggedRange", "RaggedTensorToSparse", "RaggedTensorToTensor",
    "RandomIndexShuffle", "SparseAdd", "SparseAddGrad", "SparseConcat", "SparseCountSparseOutput",
    "SparseFillEmptyRows", "SparseFillEmptyRowsGrad", "SparseReduceMax", "SparseReduceMaxSparse",
    "SparseReduceSum", "SparseReduceSumSparse", "SparseReorder", "SparseReshape", "SparseSlice",
    "SparseSliceGrad", "SparseSoftmax", "SparseSparseMaximum", "SparseSparseMinimum", "SparseSplit", "UniqueV2",
    "UniqueWithCountsV2",
)  # fmt: skip
PRINTS = ("PrintV2", "Print")
# {operation: a description, for warnings}
BY_TENSORFLOW = {
    **dict.fromkeys(STRINGS, "it computes on strings"),
    **dict.fromkeys(FUNCTIONS, "it is a function of Python"),
    **dict.fromkeys(SEARCHES, "it searches, or draws, as no array does"),
    **dict.fromkeys(SETS, "it computes on sets, of numbers or strings"),
    **dict.fromkeys(PRINTS, "it shows values"),
}


class FailedCheckError(tf.errors.InvalidArgumentError, ValueError):
    """TensorFlow's error for a check of the program that fails."""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)


def computed(node: GraphNode, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a node in TensorFlow, eagerly, and return its results."""
    # not `tf.init_scope`, in which no tape of a function of Python's records
    with tf.__internal__.eager_context.eager_mode():
        dtypes = [t.dtype for t in operation_of(node).inputs]
        tensors = [tf.constant(x, dtype) for x, dtype in zip(operands, dtypes, strict=True)]
        results = EagerOperation(operation_of(node))(tensors)
        return [np.asarray(t.numpy(), object if t.dtype == tf.string else None) for t in results]


def _arrays(x: Any) -> list[Array]:
    """Return the arrays of an operand that are being traced, or might be."""
    if isinstance(x, TracedText):
        return [a for operand in x.operands for a in _arrays(operand)]
    return [] if is_known(x) else [x]


def _restored(x: Any, values: Iterator[np.ndarray]) -> np.ndarray:
    if isinstance(x, TracedText):
        return computed(x.node, [_restored(operand, values) for operand in x.operands])[0]
    return np.asarray(x) if is_known(x) else next(values)


def _are_traced(xp: Backend, operands: Sequence[Any]) -> bool:
    return any(xp.is_traced(a) for x in operands for a in _arrays(x))


def _hosted(xp: Backend, node: GraphNode, operands: Sequence[Any]) -> Any:
    results = computed(node, [on_the_host(xp, x) for x in operands])
    return results[0] if len(results) == 1 else results


@rule(*STRINGS, either=EVERY)
def strings(xp: Backend, *operands: Any, node: GraphNode) -> Any:
    if not _are_traced(xp, operands):
        return _hosted(xp, node, operands)
    if len(node.dtypes) != 1 or node.dtypes[0] is None or node.dtypes[0].kind not in "OSU":
        raise TracedValueError(on_strings(node))
    return TracedText(node, operands)


@rule(*FUNCTIONS, either=EVERY, effect=True)
def function_of_python(xp: Backend, *operands: Any, node: GraphNode) -> Any:
    if not _are_traced(xp, operands) and not xp.in_trace() and not xp.is_tracing():
        return _hosted(xp, node, operands)
    return call_host(xp, node, lambda *values: computed(node, values), operands, specs_of(node))


@rule(*SEARCHES, *SETS, *KERNELS, either=EVERY)
def by_kernel(xp: Backend, *operands: Any, node: GraphNode) -> Any:
    if not _are_traced(xp, operands):
        return _hosted(xp, node, operands)
    return call_host(xp, node, lambda *values: computed(node, values), operands, specs_of(node))


@rule(*PRINTS, either=EVERY, effect=True)
def show(xp: Backend, *operands: Any, node: GraphNode) -> list[Any]:
    """Print a message to the stream that TensorFlow prints it to."""
    if not _are_traced(xp, operands) and not xp.in_trace() and not xp.is_tracing():
        _hosted(xp, node, operands)
    else:
        arrays = [a for x in operands for a in _arrays(x)]

        def print_values(*values: np.ndarray) -> list[np.ndarray]:
            remaining = iter(values)
            computed(node, [_restored(x, remaining) for x in operands])
            return []

        call_host(xp, node, print_values, arrays, [])
    return list(operands[: len(node.dtypes)])  # the first version hands its operand on


def failed(node: GraphNode, operands: Sequence[np.ndarray]) -> NoReturn:
    """Raise TensorFlow's error of a check, as it words it."""
    try:
        computed(node, operands)
    except tf.errors.OpError as error:
        message = error.message.partition("}} ")[2] or error.message
        raise FailedCheckError(message.rpartition(" [Op:")[0] or message) from None
    raise AssertionError(f"{node} was said to fail")


@rule("Assert", either=EVERY, effect=True)
def check(xp: Backend, condition: Any, *data: Any, node: GraphNode) -> list[Any]:
    """Check an assertion; a traced condition is not checked, as in programs that TensorFlow compiles with XLA."""
    if is_known(condition) or not xp.is_traced(condition):
        holds = on_the_host(xp, condition)
        if not (holds.all() if holds.ndim == 0 else holds.size):
            failed(node, [holds, *(_message_value(xp, x) for x in data)])
    return []


def _message_value(xp: Backend, x: Any) -> np.ndarray:
    """Return the value that a message shows; a traced value is not known."""
    if _are_traced(xp, [x]):
        return np.asarray("(being traced)", object)
    return _restored(x, iter(on_the_host(xp, a) for a in _arrays(x)))
