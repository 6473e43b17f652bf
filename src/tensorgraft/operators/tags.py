"""Tags of linear operators, which declare properties, and the table of rules by which they propagate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Tags = frozenset[str]


@dataclass(frozen=True)
class TagRule:
    """The behaviour of one tag. Conjugation keeps every tag; tags that name no rule here are lost."""

    implies: tuple[str, ...] = ()
    square: bool = True  # it can hold of square operators only
    transposed: str = ""  # the tag of the transpose and of the adjoint; "" for the same
    sum: bool = True  # kept by a sum of operators that all have it
    product: bool = False  # ... by a product
    inverse: bool = True
    kronecker: bool = True
    scaled: str = "any"  # the scalars by which it may be multiplied: "any", "real", "positive", "none"
    negated: str = ""  # the tag after multiplication by a negative scalar, if `scaled` is "positive"


# fmt: off
RULES: dict[str, TagRule] = {
    "symmetric":             TagRule(),
    "hermitian":             TagRule(scaled="real"),
    "positive_semidefinite": TagRule(implies=("hermitian",), scaled="positive", negated="negative_semidefinite"),
    "negative_semidefinite": TagRule(implies=("hermitian",), scaled="positive", negated="positive_semidefinite",
                                  kronecker=False),
    "diagonal":              TagRule(implies=("tridiagonal", "lower_triangular", "upper_triangular", "symmetric"),
                                  product=True),
    "tridiagonal":           TagRule(inverse=False, kronecker=False),
    "lower_triangular":      TagRule(transposed="upper_triangular", product=True),
    "upper_triangular":      TagRule(transposed="lower_triangular", product=True),
    "unit_diagonal":         TagRule(sum=False, inverse=False, scaled="none"),
    "unitary":               TagRule(sum=False, product=True, scaled="none"),
}
# fmt: on
_TRIANGULAR = ("lower_triangular", "upper_triangular")


def closed(tags: Iterable[str], dtype: np.dtype, shape: tuple[int, int] | None = None, name: str = "tags") -> Tags:
    """Return the tags and all that follows from them for an operator of this dtype.

    Raises ValueError for a tag that is not in the table, and for one that the shape (out_size, in_size) contradicts.
    """
    if isinstance(tags, str):
        tags = (tags,)
    closure = set(tags)
    unknown = sorted(str(t) for t in closure if t not in RULES)
    if unknown:
        raise ValueError(f"{name}: unknown tags {', '.join(unknown)}: expected some of {', '.join(RULES)}")
    if shape is not None and shape[0] != shape[1]:
        square = sorted(t for t in closure if RULES[t].square)
        if square:
            raise ValueError(
                f"{name}: an operator of shape {shape} is not square, so it cannot be {', '.join(square)}: drop the tag"
            )
    real = np.dtype(dtype).kind != "c"
    while True:
        implied = {t for tag in closure for t in RULES[tag].implies}
        if real and "symmetric" in closure:
            implied.add("hermitian")
        if real and "hermitian" in closure:
            implied.add("symmetric")
        if {"lower_triangular", "upper_triangular"} <= closure:
            implied.add("diagonal")
        if implied <= closure:
            return frozenset(closure)
        closure |= implied


def of_transpose(tags: Tags) -> Tags:
    """Return the tags of the transpose, and of the adjoint."""
    return frozenset(RULES[t].transposed or t for t in tags)


def of_sum(parts: Sequence[Tags]) -> Tags:
    return frozenset(t for t in _common(parts) if RULES[t].sum)


def of_product(parts: Sequence[Tags]) -> Tags:
    common = _common(parts)
    result_tags = {t for t in common if RULES[t].product}
    if "unit_diagonal" in common and any(t in common for t in _TRIANGULAR):
        result_tags.add("unit_diagonal")
    if all("tridiagonal" in p for p in parts) and sum("diagonal" not in p for p in parts) <= 1:
        result_tags.add("tridiagonal")
    return frozenset(result_tags)


def of_kronecker(parts: Sequence[Tags]) -> Tags:
    result_tags = {t for t in _common(parts) if RULES[t].kronecker}
    signs = [p & {"positive_semidefinite", "negative_semidefinite"} for p in parts]
    if all(signs):  # each factor has a sign: the product of the signs
        odd = sum("positive_semidefinite" not in s for s in signs) % 2
        result_tags.add("negative_semidefinite" if odd else "positive_semidefinite")
    return frozenset(result_tags)


def of_blocks(parts: Sequence[Tags]) -> Tags:
    """Return the tags of a block diagonal of operators."""
    return _common(parts)


def of_inverse(tags: Tags) -> Tags:
    result_tags = {t for t in tags if RULES[t].inverse}
    if "unit_diagonal" in tags and any(t in tags for t in _TRIANGULAR):
        result_tags.add("unit_diagonal")
    if "diagonal" in tags:
        result_tags.add("tridiagonal")
    return frozenset(result_tags)


def of_scaled(tags: Tags, scalar: Any) -> Tags:
    """`scalar`: a Python number, or "real" or "complex" for an array, whose value is not read."""
    if isinstance(scalar, str):
        real, sign = scalar == "real", None
    else:
        real = complex(scalar).imag == 0
        value = complex(scalar).real
        sign = (value >= 0) - (value < 0) if real else None
        if scalar == 1:
            return tags
    tags_kept = set()
    for t in tags:
        preserved_by = RULES[t].scaled
        if preserved_by == "any" or (preserved_by == "real" and real) or (preserved_by == "positive" and sign == 1):
            tags_kept.add(t)
        elif preserved_by == "positive" and sign == -1:
            tags_kept.add(RULES[t].negated)
    return frozenset(tags_kept)


def _common(parts: Sequence[Tags]) -> Tags:
    return frozenset.intersection(*parts) if parts else frozenset()
