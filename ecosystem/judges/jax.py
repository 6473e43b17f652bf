"""JAX's tests: what one of them compiles and finds right is grafted onto another framework as well, and compared.

A test that compiles nothing, or of whose numbers the other framework has no dtype, is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

# By the precision of a result: sums come in another order than XLA's. A test that allows more is believed.
TOLERANCES = {
    "bfloat16": 3e-2,
    "float16": 3e-3,
    "float32": 3e-4,
    "complex64": 3e-4,
    "float64": 1e-6,
    "complex128": 1e-6,
}


class NoSuchDtypeError(Exception):
    """The other framework has no such numbers."""


def pytest_configure(config: pytest.Config) -> None:
    if backend := config.getoption("--suite-on"):
        _graft_what_is_compiled(backend)


def _graft_what_is_compiled(backend: str) -> None:
    from jax._src import test_util

    case: Any = test_util.JaxTestCase
    compile_and_check = case._CompileAndCheck

    def check(self: Any, function: Callable[..., Any], make_arguments: Callable[[], Any], **options: Any) -> None:
        compile_and_check(self, function, make_arguments, **options)
        self.grafted = getattr(self, "grafted", 0) + _compare(function, make_arguments(), backend, options)

    case._CompileAndCheck = check


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    result = yield
    if item.config.getoption("--suite-on") and not getattr(getattr(item, "instance", None), "grafted", 0):
        pytest.skip("compiles nothing that can be grafted")
    return result


def _compare(function: Callable[..., Any], arguments: Any, backend: str, options: dict[str, Any]) -> bool:
    """Raise AssertionError where the grafted function differs from the compiled one; False where it cannot be tried."""
    import jax

    import tensorgraft as tg

    want = jax.tree.leaves(jax.jit(function)(*arguments))
    try:
        given = jax.tree.map(lambda leaf: _to(backend, leaf), tuple(arguments))
    except NoSuchDtypeError:
        return False
    got = [_to_numpy(leaf) for leaf in jax.tree.leaves(tg.graft(function, onto=backend)(*given))]
    assert len(got) == len(want), f"{len(got)} results for {len(want)}"
    allowed = [t for t in map(options.get, ("tol", "rtol", "atol")) if isinstance(t, float)]
    for a, b in zip(map(np.asarray, want), got, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{b.dtype}{b.shape} for {a.dtype}{a.shape}"
        if (tolerance := TOLERANCES.get(str(a.dtype))) is None:
            np.testing.assert_array_equal(b, a)
        else:
            wide = np.result_type(a.dtype, np.float64) if a.dtype.kind in "fc" else np.dtype("float64")
            most = max([tolerance, *allowed])
            np.testing.assert_allclose(b.astype(wide), a.astype(wide), rtol=most, atol=most)
    return True


def _to(backend: str, leaf: Any) -> Any:
    import jax

    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return leaf
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        return leaf
    array = np.array(leaf)
    if backend == "torch":
        return _to_torch(array)
    if backend == "tensorflow":
        import tensorflow as tf

        try:
            return tf.constant(array)
        except (TypeError, ValueError) as error:
            raise NoSuchDtypeError(str(array.dtype)) from error
    return array


def _to_torch(array: np.ndarray) -> Any:
    import torch

    name = str(array.dtype)
    if name.startswith(("bfloat16", "float8_")) and hasattr(torch, name):
        bits = array.reshape(-1).view(f"uint{8 * array.dtype.itemsize}")
        return torch.from_numpy(bits).view(getattr(torch, name)).reshape(array.shape)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise NoSuchDtypeError(name) from error


def _to_numpy(leaf: Any) -> np.ndarray:
    import torch

    if not isinstance(leaf, torch.Tensor):
        return np.asarray(leaf)
    tensor = leaf.detach().resolve_conj().resolve_neg().contiguous()
    try:
        return np.asarray(tensor.numpy())
    except TypeError:  # a dtype that NumPy has by ml_dtypes alone
        import ml_dtypes

        bits = getattr(torch, f"uint{8 * tensor.itemsize}")
        dtype = getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."))
        return np.asarray(tensor.reshape(-1).view(bits).numpy().view(dtype).reshape(tuple(tensor.shape)))
