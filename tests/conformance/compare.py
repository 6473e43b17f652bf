"""When a result on the device counts as CPU PyTorch's: structure, dtype and shape exactly, values within tolerance.

A float result outside its tolerance is still right where it is as good as the CPU's own: measured against the same call
in double precision, its largest error is at most four times that of the CPU (and a little more).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

Tensor = torch.Tensor

# dtype -> (relative, absolute); integers and bools are exact
TOLERANCES = {
    torch.float64: (1e-6, 1e-7),
    torch.complex128: (1e-6, 1e-7),
    torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (1e-2, 1e-2),
}
_WIDE = {torch.complex64: torch.complex128, torch.complex128: torch.complex128}


def compare(expected: Any, actual: Any, what: str, reference: Callable[[], Any] | None = None) -> None:
    """Raise AssertionError where `actual` (on the device, or copied from it) is not what the CPU gave (`expected`).

    `reference` makes the same result in double precision; it is called only for a mismatch in values.
    """
    wide: list[Any] | None = None
    for i, (path, want, got) in enumerate(list(_pairs(expected, actual, what))):
        assert isinstance(got, Tensor), f"{path}: {type(got).__name__}, the CPU gives a tensor"
        assert got.dtype == want.dtype, f"{path}: dtype {got.dtype}, the CPU gives {want.dtype}"
        assert got.shape == want.shape, f"{path}: shape {tuple(got.shape)}, the CPU gives {tuple(want.shape)}"
        got = plain(got)
        rtol, atol = TOLERANCES.get(want.dtype, (0.0, 0.0))
        try:
            torch.testing.assert_close(got, plain(want), rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            if want.dtype not in TOLERANCES or reference is None:
                raise AssertionError(f"{path}: {error}") from None
            if wide is None:
                wide = [t for _, t, _ in _pairs(*[reference()] * 2, what)]
            if not as_good(got, plain(want), plain(wide[i])):
                raise AssertionError(f"{path}: {error}") from None


def as_good(got: Tensor, want: Tensor, exact: Tensor) -> bool:
    """The error of `got` is at most about that of `want`."""
    if exact.shape != want.shape or exact.is_complex() != want.is_complex():
        return False
    wide = _WIDE.get(want.dtype, torch.float64)
    got, want, exact = got.to(wide), want.to(wide), exact.to(wide)
    finite = torch.isfinite(want)
    if not torch.equal(finite, torch.isfinite(got)):
        return False
    torch.testing.assert_close(got[~finite], want[~finite], equal_nan=True)
    both = finite & torch.isfinite(exact)
    if not both.any():
        return False
    own = (want - exact)[both].abs().max()
    return bool((got - exact)[both].abs().max() <= 4 * own + 1e-4)


def plain(t: Tensor) -> Tensor:
    """On the CPU, detached, without lazy conjugation or negation."""
    return t.detach().cpu().resolve_conj().resolve_neg()


def _pairs(expected: Any, actual: Any, path: str) -> Iterator[tuple[str, Tensor, Any]]:
    """(where, tensor of the CPU, what the device has there) for every tensor; other values are compared at once."""
    if isinstance(expected, Tensor):
        yield path, expected, actual
    elif isinstance(expected, torch.Size):
        assert tuple(actual) == tuple(expected), f"{path}: {actual}, the CPU gives {expected}"
    elif isinstance(expected, list | tuple):
        assert isinstance(actual, list | tuple), f"{path}: {type(actual).__name__}, not {type(expected).__name__}"
        assert len(actual) == len(expected), f"{path}: {len(actual)} results, the CPU gives {len(expected)}"
        fields = [n for n in dir(type(expected)) if not n.startswith("_")] if type(expected) is not tuple else []
        missing = [n for n in fields if not hasattr(actual, n)]
        assert not missing, f"{path}: {type(actual).__name__} has no {', '.join(missing)}"
        for i, (e, a) in enumerate(zip(expected, actual, strict=True)):
            yield from _pairs(e, a, f"{path}[{i}]")
    elif isinstance(expected, dict):
        assert isinstance(actual, dict) and actual.keys() == expected.keys(), f"{path}: other keys"
        for key, e in expected.items():
            yield from _pairs(e, actual[key], f"{path}[{key!r}]")
    elif isinstance(expected, bool | int | float | complex):
        assert type(actual) is type(expected), f"{path}: {type(actual).__name__}, the CPU gives {expected!r}"
        if isinstance(expected, float | complex):
            torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), equal_nan=True)
        else:
            assert actual == expected, f"{path}: {actual!r}, the CPU gives {expected!r}"
