"""Docstrings that `help(xp.sum)` shows: sentence, arguments with shapes and dtypes, result, errors and source, made of
tables.

A function's own docstring is its sentence. What arguments mean is said once for all functions that have them.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

STANDARD = "https://data-apis.org/array-api/2025.12/API_specification/generated/array_api"

# kinds of operands (b, i, f, c: booleans, integers, real and complex floating-point numbers) in words
_DEFAULT = "; booleans and integers are taken in the default dtype, float64"
KINDS = {
    "bifc": "any dtype",
    "ifc": "integers, real or complex floating-point numbers",
    "bif": "booleans, integers or real floating-point numbers",
    "if": "integers or real floating-point numbers",
    "i": "integers",
    "bi": "booleans or integers",
    "b": "booleans; numbers are taken as true where they are not zero",
    "c": "complex floating-point numbers",
    "f": f"real floating-point numbers{_DEFAULT}",
    "fc": f"real or complex floating-point numbers{_DEFAULT}",
}

# {name of an argument: its description, unless a function has its own}
ARGUMENTS = {
    "arrays": "arrays on one device",
    "arrays_and_dtypes": "arrays, dtypes and scalars, of which one at least is an array or a dtype",
    "api_version": "a version of the standard",
    "axes": "ints, or a pair of them for two arrays; negative ones counted from the end",
    "append": "an array to put behind `x`; None for nothing",
    "axis": "an int, or ints; negative ones count from the end; None for all axes",
    "condition": "an array of booleans",
    "copy": "True: always a copy; False: never one, or ValueError; None: where one is needed",
    "correction": "what is taken off the number of elements",
    "d": "the distance of points",
    "descending": "from the greatest",
    "device": 'a name such as "jax", `tg.device(...)`, the device of an array; None for that of the operands, else the'
    " default one",
    "dtype": "of the result, a dtype of this namespace; None for the one that the result has by itself",
    "endpoint": "whether `stop` is the last number",
    "fill_value": "a Python scalar, or a 0-dimensional array",
    "full_matrices": "whether U and Vᴴ are square",
    "include_initial": "whether a 0 (of products: a 1) comes first, for one element more",
    "from_": "a dtype, or an array for its dtype",
    "indexing": '"xy" (rows first are y) or "ij"',
    "indices": "an array of integers, negative ones counted from the end",
    "invert": "whether an element is not there",
    "kind": 'a name such as "bool", "integral", "real floating", "numeric", a dtype, or a tuple of these',
    "k": "the number of a diagonal, counted upwards from the main one",
    "keepdims": "whether the axes stay, with one element each",
    "max": "a number, or an array that broadcasts with `x`; None for no bound",
    "min": "a number, or an array that broadcasts with `x`; None for no bound",
    "mode": '"reduced" or "complete"',
    "n": "an int; of points or times",
    "n_cols": "an int; None for as many as rows",
    "n_rows": "an int",
    "norm": '"backward" (the inverse transform is divided by the number of points), "forward", or "ortho"',
    "num": "an int",
    "offset": "the number of a diagonal, counted upwards from the main one",
    "ord": "the order of the norm",
    "destination": "an int, or ints: the places of the axes in the result",
    "obj": "an array of any library, a number, or nested sequences",
    "prepend": "an array to put before `x`; None for nothing",
    "repeats": "an int, or an array of integers, one for each element",
    "repetitions": "ints",
    "rtol": "a number, or an array of the batch's shape; None for the greater extent times the dtype's eps",
    "s": "the number of points along each axis; None for those there are",
    "shape": "an int, or a tuple of ints",
    "shift": "an int, or one for each axis",
    "shapes": "tuples of ints, or None for extents that are not known",
    "side": '"left" or "right" of equal elements',
    "sorter": "an array of integers that puts `x1` in order; None where it is",
    "source": "an int, or ints: the axes that move",
    "start": "a number",
    "step": "a number, not 0",
    "stop": "a number",
    "stable": "equal elements stay in their order, which they do in any case",
    "x": "an object with `__dlpack__`",
    "to": "a dtype",
    "type": "a dtype, or an array for its dtype",
    "upper": "whether the factor is an upper triangle",
}

_SAME = "an array of the shape and dtype of `x`"
_TRUTHS = "an array of booleans, of the shape of `x`"
_REDUCED = "the shape of `x` without the axes"
_MATRICES = "arrays whose last two axes are matrices, those before a batch"
_SPECTRUM = "an array of complex numbers of the precision of `x`, of the shape of `x` with the number of points"
_SIGNAL = "an array of real numbers of the precision of `x`, of the shape of `x` with the number of points"
_HALF = "an array of complex numbers of the precision of `x`; the last of the axes has n // 2 + 1 elements"
_MADE = "an array on the device; float64 without `dtype`"
_LIKE = "an array of the shape of `x`; its dtype and device unless others are given"

# sentences of functions that have none of their own
SENTENCES = {
    "abs": "The absolute value of each element; of complex ones the modulus.",
    "acos": "The angle in [0, pi] whose cosine each element is.",
    "acosh": "The inverse of the hyperbolic cosine of each element.",
    "asin": "The angle in [-pi/2, pi/2] whose sine each element is.",
    "asinh": "The inverse of the hyperbolic sine of each element.",
    "atan": "The angle in [-pi/2, pi/2] whose tangent each element is.",
    "atanh": "The inverse of the hyperbolic tangent of each element.",
    "cos": "The cosine of each element, an angle in radians.",
    "cosh": "The hyperbolic cosine of each element.",
    "sin": "The sine of each element, an angle in radians.",
    "sinh": "The hyperbolic sine of each element.",
    "tan": "The tangent of each element, an angle in radians.",
    "tanh": "The hyperbolic tangent of each element.",
    "exp": "e to the power of each element.",
    "log": "The natural logarithm of each element.",
    "log2": "The logarithm to base 2 of each element.",
    "log10": "The logarithm to base 10 of each element.",
    "reciprocal": "1 divided by each element.",
    "sqrt": "The square root of each element, of complex ones the principal root.",
    "ceil": "The least integer not less than each element.",
    "floor": "The greatest integer not greater than each element.",
    "trunc": "Each element without its fraction.",
    "bitwise_invert": "Each bit of each element inverted; of booleans their negation.",
    "conj": "The complex conjugate of each element.",
    "expm1": "e to the power of each element, less 1, accurate near 0.",
    "imag": "The imaginary part of each element.",
    "isfinite": "Whether each element is neither infinite nor NaN.",
    "isinf": "Whether each element is infinite.",
    "isnan": "Whether each element is NaN.",
    "log1p": "The natural logarithm of 1 plus each element, accurate near 0.",
    "logical_not": "Whether each element is false.",
    "negative": "Each element with the other sign.",
    "positive": "Each element as it is.",
    "real": "The real part of each element.",
    "round": "The integer nearest to each element, the even one of two.",
    "sign": "-1, 0 or 1; of a complex number that number divided by its modulus.",
    "signbit": "Whether the sign of each element is minus, of -0 too.",
    "square": "Each element times itself.",
    "add": "The sum of the elements.",
    "multiply": "The product of the elements; booleans beside numbers are a mask.",
    "subtract": "The first elements less the second ones.",
    "pow": "The first elements to the power of the second ones.",
    "atan2": "The angle in [-pi, pi] of the points (x2, x1) with the first axis.",
    "copysign": "The size of the first elements with the sign of the second ones.",
    "hypot": "The root of the sum of squares, without overflow on the way.",
    "logaddexp": "The logarithm of the sum of exponentials, without overflow on the way.",
    "nextafter": "The next number of the dtype after the first elements, towards the second ones.",
    "bitwise_and": "The bits that are set in both elements.",
    "bitwise_or": "The bits that are set in either element.",
    "bitwise_xor": "The bits that are set in one element, not in both.",
    "bitwise_left_shift": "The bits of the first elements moved up by the second ones.",
    "bitwise_right_shift": "The bits of the first elements moved down by the second ones, with the sign.",
    "divide": "The first elements divided by the second ones.",
    "equal": "Whether the elements are equal; NaN is equal to nothing.",
    "not_equal": "Whether the elements are not equal.",
    "floor_divide": "The greatest integer not greater than the quotient.",
    "remainder": "What is left of a division rounded down, with the sign of the second elements.",
    "maximum": "The greater of the elements; NaN wins.",
    "minimum": "The lesser of the elements; NaN wins.",
    "greater": "Whether the first elements are greater than the second ones.",
    "greater_equal": "Whether the first elements are greater than the second ones, or equal.",
    "less": "Whether the first elements are less than the second ones.",
    "less_equal": "Whether the first elements are less than the second ones, or equal.",
    "logical_and": "Whether both elements are true.",
    "logical_or": "Whether either element is true.",
    "logical_xor": "Whether one element is true, and not both.",
    "empty_like": "Zeros in the shape of another array: backends make no arrays without values.",
    "full_like": "One value in the shape of another array.",
    "ones_like": "Ones in the shape of another array.",
    "zeros_like": "Zeros in the shape of another array.",
    "ones": "All elements are 1.",
    "zeros": "All elements are 0.",
    "finfo": "What a floating-point dtype can hold; of a complex one, its parts.",
    "iinfo": "What an integer dtype can hold.",
    "linalg.det": "The determinants of square matrices.",
    "linalg.inv": "The inverses of square matrices, infinite or NaN of singular ones.",
}  # fmt: skip

# function -> (kinds of its operands, "" for none; the result)
RESULTS: dict[str, tuple[str, str]] = {
    "all": ("bifc", f"booleans, in {_REDUCED}; of no elements true"),
    "any": ("bifc", f"booleans, in {_REDUCED}; of no elements false"),
    "arange": ("", "an array of one dimension on the device; int64 of ints, else float64, without `dtype`"),
    "argmax": ("bif", f"int64, in {_REDUCED}"),
    "argmin": ("bif", f"int64, in {_REDUCED}"),
    "argsort": ("bif", "an array of int64, of the shape of `x`"),
    "asarray": ("", "an array; default dtypes of Python's scalars are bool, int64, float64 and complex128"),
    "astype": ("bifc", "an array of the shape of `x` and of the dtype"),
    "broadcast_arrays": ("bifc", "a tuple of views"),
    "broadcast_shapes": ("", "a tuple of ints"),
    "broadcast_to": ("bifc", "a view of the shape"),
    "can_cast": ("", "a bool"),
    "clip": ("if", "an array of the dtype of `x`, of the shape to which the arrays broadcast"),
    "concat": ("bifc", "an array of the common dtype"),
    "count_nonzero": ("bifc", f"int64, in {_REDUCED}"),
    "cumulative_prod": ("bifc", "an array of the shape of `x`; booleans and integers give 64 bits without `dtype`"),
    "cumulative_sum": ("bifc", "an array of the shape of `x`; booleans and integers give 64 bits without `dtype`"),
    "diff": ("ifc", "an array of the dtype of `x`, shorter by `n` along the axis"),
    "empty": ("", _MADE),
    "empty_like": ("bifc", _LIKE),
    "expand_dims": ("bifc", "a view with the new axes"),
    "eye": ("", f"{_MADE}; (n_rows, n_cols)"),
    "finfo": ("", "an object with bits, eps, max, min, smallest_normal, dtype"),
    "flip": ("bifc", "a view of the shape of `x`"),
    "from_dlpack": ("", "an array"),
    "full": ("", "an array of the shape on the device"),
    "full_like": ("bifc", _LIKE),
    "iinfo": ("", "an object with bits, max, min, dtype"),
    "isdtype": ("", "a bool"),
    "isin": ("bifc", "an array of booleans, of the shape of `x1`"),
    "linspace": ("", "an array of one dimension on the device; float64 without `dtype`, complex128 of complex numbers"),
    "matmul": ("ifc", "an array of the common dtype, (..., n, m) of (..., n, k) and (..., k, m); batches broadcast"),
    "matrix_transpose": ("bifc", "a view, (..., m, n) of (..., n, m)"),
    "max": ("bif", f"the dtype of `x`, in {_REDUCED}"),
    "mean": ("fc", f"the dtype of `x`, in {_REDUCED}"),
    "meshgrid": ("bifc", "a tuple of arrays of one shape"),
    "min": ("bif", f"the dtype of `x`, in {_REDUCED}"),
    "moveaxis": ("bifc", "a view"),
    "nonzero": ("bifc", "a tuple of arrays of one dimension"),
    "ones": ("", _MADE),
    "ones_like": ("bifc", _LIKE),
    "permute_dims": ("bifc", "a view"),
    "prod": ("bifc", f"an array in {_REDUCED}; booleans and integers give 64 bits without `dtype`; of no elements 1"),
    "repeat": ("bifc", "an array of the dtype of `x`"),
    "reshape": ("bifc", "a view, or an array, of the shape"),
    "result_type": ("", "a dtype"),
    "roll": ("bifc", _SAME),
    "searchsorted": ("if", "an array of int64, of the shape of `x2`"),
    "sort": ("bif", _SAME),
    "squeeze": ("bifc", "a view"),
    "stack": ("bifc", "an array of the common dtype, of one dimension more"),
    "std": ("f", f"the dtype of `x`, in {_REDUCED}"),
    "sum": ("bifc", f"an array in {_REDUCED}; booleans and integers give 64 bits without `dtype`; of no elements 0"),
    "take": ("bifc", "an array of the dtype of `x`, with as many elements along the axis as there are indices"),
    "take_along_axis": ("bifc", "an array of the dtype of `x`, of the shape of `indices` with the other axes of both"),
    "tensordot": ("ifc", "an array of the common dtype, of the axes that are left of both"),
    "tile": ("bifc", "an array of the dtype of `x`"),
    "tril": ("bifc", f"{_SAME}, (..., n, m)"),
    "triu": ("bifc", f"{_SAME}, (..., n, m)"),
    "unique_all": ("bifc", "(values, indices, inverse_indices, counts); all but the values are int64"),
    "unique_counts": ("bifc", "(values, counts), of one dimension; counts are int64"),
    "unique_inverse": ("bifc", "(values, inverse_indices); positions are int64, of the shape of `x`"),
    "unique_values": ("bifc", "an array of one dimension, ascending; each NaN is a value of its own"),
    "unstack": ("bifc", "a tuple of views"),
    "var": ("f", f"the dtype of `x`, in {_REDUCED}"),
    "vecdot": ("ifc", "an array of the common dtype, of the axes that are left"),
    "where": ("bifc", "an array of the common dtype, of the shape to which all three broadcast"),
    "zeros": ("", _MADE),
    "zeros_like": ("bifc", _LIKE),
    "linalg.cholesky": ("fc", f"{_SAME}, (..., n, n)"),
    "linalg.cross": ("ifc", "an array of the common dtype, of the shape to which both broadcast"),
    "linalg.det": ("fc", "an array of the dtype of `x`, (...)"),
    "linalg.diagonal": ("bifc", "a view, (..., k)"),
    "linalg.eig": ("fc", "(eigenvalues (..., n), eigenvectors (..., n, n)), complex"),
    "linalg.eigh": ("fc", "(eigenvalues (..., n), real; eigenvectors (..., n, n), of the dtype of `x`)"),
    "linalg.eigvals": ("fc", "an array of complex numbers, (..., n)"),
    "linalg.eigvalsh": ("fc", "an array of real numbers, (..., n)"),
    "linalg.inv": ("fc", f"{_SAME}, (..., n, n)"),
    "linalg.matrix_norm": ("fc", "an array of real numbers, (...); the greatest of no singular values, or sums, is 0"),
    "linalg.matrix_power": ("fc", f"{_SAME}, (..., n, n); integers stay integers where `n` is not negative"),
    "linalg.matrix_rank": ("fc", "an array of int64, (...)"),
    "linalg.outer": ("ifc", "an array of the common dtype, (n, m)"),
    "linalg.pinv": ("fc", "an array of the dtype of `x`, (..., m, n) of (..., n, m)"),
    "linalg.qr": ("fc", "(Q (..., n, k), R (..., k, m)) of (..., n, m), where k is the lesser of n and m"),
    "linalg.slogdet": ("fc", "(sign, logabsdet), both (...)"),
    "linalg.solve": ("fc", "an array of the common dtype, of the shape of `x2` with the batch"),
    "linalg.svd": ("fc", "(U (..., n, n), S (..., k) real, Vh (..., m, m)), or with k columns and rows"),
    "linalg.svdvals": ("fc", "an array of real numbers, (..., k)"),
    "linalg.trace": ("bifc", "an array, (...)"),
    "linalg.vector_norm": ("fc", f"real numbers, in {_REDUCED}; of no elements 0"),
    "fft.fft": ("fc", _SPECTRUM),
    "fft.fftfreq": ("", "float64 without `dtype`, (n,)"),
    "fft.fftn": ("fc", _SPECTRUM),
    "fft.fftshift": ("bifc", _SAME),
    "fft.hfft": ("fc", _SIGNAL),
    "fft.ifft": ("fc", _SPECTRUM),
    "fft.ifftn": ("fc", _SPECTRUM),
    "fft.ifftshift": ("bifc", _SAME),
    "fft.ihfft": ("f", _HALF),
    "fft.irfft": ("fc", _SIGNAL),
    "fft.irfftn": ("fc", _SIGNAL),
    "fft.rfft": ("f", _HALF),
    "fft.rfftfreq": ("", "float64 without `dtype`, (n // 2 + 1,)"),
    "fft.rfftn": ("f", _HALF),
}  # fmt: skip
_REAL = ("abs", "imag", "real")  # functions of complex numbers with real results
_PREDICATES = ("isfinite", "isinf", "isnan", "logical_not", "signbit")
_COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")


def _of_elements(name: str, kinds: str, operands: int) -> tuple[str, str]:
    """Return the row of an elementwise function."""
    if operands == 1:
        out = _TRUTHS if name in _PREDICATES else f"{_SAME}, real" if name in _REAL else _SAME
        return kinds, out
    truths = name in _COMPARISONS or name.startswith("logical_")
    return kinds, f"an array of {'booleans' if truths else 'the common dtype'}, of the shape to which both broadcast"


def _operand(name: str, kinds: str, is_matrix: bool, elementwise: bool) -> str:
    if name in ("x1", "x2") and elementwise:
        return f"an array, or a number beside one: {KINDS[kinds]}"
    return f"{_MATRICES if is_matrix else 'an array of any shape'}: {KINDS[kinds]}"


def _errors(fn: Callable[..., Any], kinds: str) -> str:
    names = inspect.signature(fn).parameters
    errors = []
    if kinds:
        errors.append(f"TypeError for what is no array{'' if kinds == 'bifc' else ', or of another dtype'}")
    if "device" in names:
        errors.append("BackendNotAvailableError for a device that is not there")
    if "axis" in names or "axes" in names:
        errors.append("IndexError for an axis that is not there")
    if "x1" in names:
        errors.append("ValueError for shapes that do not fit, and for arrays of several devices")
    if "shape" in names:
        errors.append("ValueError for a shape that does not fit")
    return "; ".join(errors)


def document(name: str, fn: Callable[..., Any], kinds: str | None = None) -> None:
    """Give a function its docstring. `kinds`: of an elementwise function made by a table."""
    parameters = inspect.signature(fn).parameters
    elementwise = kinds is not None
    row = RESULTS.get(name) or RESULTS.get(f"linalg.{name}")
    takes, returns = _of_elements(name, kinds, len(parameters)) if kinds is not None else row or ("bifc", "")
    sentence = inspect.cleandoc(fn.__doc__ or SENTENCES.get(name, ""))
    lines = []
    for key, parameter in parameters.items():
        if key in ("x", "x1", "x2") and takes:
            lines.append(f"    {key}: {_operand(key, takes, name.startswith('linalg.') and key == 'x', elementwise)}.")
        elif key == "axis" and isinstance(parameter.default, int):
            lines.append(f"    {key}: an int; negative ones count from the end.")
        elif key in ARGUMENTS:
            lines.append(f"    {key}: {ARGUMENTS[key]}.")
    parts = [sentence]
    if lines:
        wrapped = [textwrap.fill(line, 100, subsequent_indent=" " * 8) for line in lines]
        parts.append("\n".join(["Arguments:", *wrapped]))
    if returns:
        parts.append(textwrap.fill(f"Returns {returns}.", 100))
    if errors := _errors(fn, takes):
        parts.append(textwrap.fill(f"Raises {errors}.", 100))
    parts.append(f"Source: {STANDARD}.{name}.html")
    fn.__doc__ = "\n\n".join(parts)


def document_all(functions: dict[str, Callable[..., Any]], kinds: dict[str, str], prefix: str = "") -> None:
    """Complete the docstrings of the functions of a namespace; `kinds`: {name: kinds of dtypes} of functions made from
    a table."""
    for name, fn in functions.items():
        if inspect.isfunction(fn) and not name.startswith("_") and "Source: " not in (fn.__doc__ or ""):
            document(prefix + name, fn, kinds.get(name))


__all__ = ["document_all"]
