"""Schemes: how a tensor is quantised."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tensorgraft.quantization.encodings import ENCODINGS, Encoding, is_table, table_encoding

_NAME = re.compile(
    rf"(?P<encoding>{'|'.join(ENCODINGS)})(?P<zero>_asymmetric|_offset)?"
    r"(?P<activation>_dynamic|_static(_asymmetric)?)?"
    r"(_per_(?P<granularity>tensor|channel|group_(?P<group>\d+)|block_(?P<rows>\d+)x(?P<columns>\d+)))?"
)


@dataclass(frozen=True)
class Scheme:
    """The scheme of a quantised tensor: its codes, and which elements share a scale.

    Arguments:
        encoding: "int1" to "int8", "uint1" to "uint8" (affine), "float8_e4m3", "float8_e5m2", "float6_e3m2",
            "float6_e2m3", "float4_e2m1", "nf4"; "table", for which `table` has the numbers.
        granularity: "tensor" (one scale), "channel" (one for each index of `axis`), "group" (one for each run of
            `group` elements along the last axis), "block" (one for each block of extents `block`, of the last axes).
        symmetric: zero is the code zero; otherwise each scale has a zero point. Unsigned codes are never symmetric.
        activation: None; or in products the other operand is quantised to int8, too, and the codes are multiplied as
            integers: "int8", row by row, when they are computed; "int8_static", with one scale, which calibration has
            found (`tg.quantize(..., inputs=)`, `tg.quantize_(..., calibrate=)`) and the quantised array keeps;
            "int8_static_asymmetric", with one scale and zero point.
        offset: for integers that are not symmetric: a zero point is a number that is added to the scaled code (as in
            PyTorch's int4 products), instead of a code that is subtracted before scaling.
        table: 2 to 256 numbers; a code is a position among them.
    """

    encoding: str
    granularity: str = "channel"
    group: int = 32
    block: tuple[int, ...] = ()
    axis: int = 0
    symmetric: bool = True
    activation: str | None = None
    offset: bool = False
    table: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS and self.encoding != "table":
            raise ValueError(f"unknown encoding {self.encoding!r}; there are {', '.join(ENCODINGS)}, table")
        if bool(self.table) != (self.encoding == "table") or (self.table and not is_table(self.table)):
            raise ValueError(
                f"{self.encoding} with a table of {len(self.table)} numbers: only the encoding 'table' has one, of"
                " 2 to 256 finite numbers that are not all 0"
            )
        if self.granularity not in ("tensor", "channel", "group", "block"):
            raise ValueError(f"expected granularity tensor, channel, group or block, got {self.granularity!r}")
        if self.granularity == "group" and self.group < 1:
            raise ValueError(f"expected group of at least 1, got {self.group}")
        if self.granularity == "block" and (not self.block or min(self.block) < 1):
            raise ValueError(f"expected a block of extents of at least 1, got {self.block}")
        if self.activation not in _ACTIVATIONS.values():
            kinds = ", ".join(map(repr, _ACTIVATIONS.values()))
            raise ValueError(f"expected activation to be one of {kinds}, got {self.activation!r}")
        if self.codes.kind != "integer" and not self.symmetric:
            raise ValueError(f"{self.encoding} has no zero points: expected symmetric=True")
        if self.offset and self.symmetric:
            raise ValueError(
                "offset=True requires zero points, which symmetric codes do not have: pass symmetric=False"
            )
        if self.activation and (self.encoding != "int8" or not self.symmetric or self.granularity not in _ROWS):
            raise ValueError(
                f"activation={self.activation!r} multiplies integers, which requires symmetric int8 codes with one"
                f" scale for each channel or tensor, got {self.encoding} per {self.granularity}"
            )

    @property
    def codes(self) -> Encoding:
        return table_encoding(self.table) if self.table else ENCODINGS[self.encoding]

    @property
    def has_zero_points(self) -> bool:
        return self.codes.kind == "integer" and not (self.symmetric and self.codes.signed and self.codes.bits > 1)

    @property
    def is_static(self) -> bool:
        """Return True if arrays of the scheme store how the other operand of products is quantised."""
        return self.activation in ("int8_static", "int8_static_asymmetric")

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the arrays of which a quantised array consists."""
        zero = ("zero",) if self.has_zero_points else ()
        inputs = ("input_scale",) if self.is_static else ()
        return ("codes", "scale", *zero, *inputs, *(("input_zero",) if self.activation == _WITH_ZERO else ()))

    def blocks(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the extents, in a tensor of `shape`, of the blocks that share a scale. Raises ValueError if they do
        not divide it."""
        if self.granularity == "tensor":
            return tuple(max(n, 1) for n in shape)
        if self.granularity == "channel":
            if not shape:
                raise ValueError(f"{self}: a tensor without axes has no channels; use granularity='tensor'")
            if not -len(shape) <= self.axis < len(shape):
                raise ValueError(f"{self}: a tensor of shape {shape} has no axis {self.axis}")
            return tuple(1 if i == self.axis % len(shape) else max(n, 1) for i, n in enumerate(shape))
        block = (self.group,) if self.granularity == "group" else self.block
        if len(block) > len(shape):
            raise ValueError(f"{self}: a tensor of shape {shape} has fewer axes than the blocks {block}")
        full = (1,) * (len(shape) - len(block)) + block
        for axis, (n, b) in enumerate(zip(shape, full, strict=True)):
            if n % b:
                near = [d for d in range(min(b, n), 0, -1) if n % d == 0][:1]
                raise ValueError(
                    f"a tensor of shape {shape} does not divide into groups of {b} along axis {axis}, which has {n}"
                    f" elements: use a group of {near[0] if near else 1}, or granularity='channel'"
                )
        return full

    def __str__(self) -> str:
        extra = {"group": f"_{self.group}", "block": "_" + "x".join(map(str, self.block))}.get(self.granularity, "")
        return (
            self.encoding
            + ("" if self.symmetric else "_offset" if self.offset else "_asymmetric")
            + next(suffix for suffix, activation in _ACTIVATIONS.items() if activation == self.activation)
            + f"_per_{self.granularity}{extra}"
        )


_ROWS = ("tensor", "channel")
_WITH_ZERO = "int8_static_asymmetric"
_ACTIVATIONS = {"": None, "_dynamic": "int8", "_static": "int8_static", "_static_asymmetric": _WITH_ZERO}  # by suffix


def scheme_of(name: str | Scheme) -> Scheme:
    """Return the scheme of a name such as "int8_per_channel", "int8_dynamic_per_channel", "int8_static",
    "int4_per_group_32", "uint4_asymmetric_per_group_64", "float8_e4m3" (per channel), "nf4" (groups of 64),
    "int8_per_block_16x16".

    Raises ValueError for others.
    """
    if isinstance(name, Scheme):
        return name
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(
            f"unknown scheme {name!r}: write an encoding ({', '.join(ENCODINGS)}), then _asymmetric, _offset,"
            " _dynamic, _static or _static_asymmetric where needed, then _per_tensor, _per_channel, _per_group_32"
            " or _per_block_16x16; for example int4_per_group_32"
        )
    encoding = match["encoding"]
    granularity = (match["granularity"] or ("group_64" if encoding == "nf4" else "channel")).partition("_")[0]
    return Scheme(
        encoding,
        granularity,
        group=int(match["group"] or (64 if encoding == "nf4" else 32)),
        block=(int(match["rows"]), int(match["columns"])) if match["rows"] else (),
        symmetric=not match["zero"] and not encoding.startswith("uint"),
        activation=_ACTIVATIONS[match["activation"] or ""],
        offset=match["zero"] == "_offset",
    )
