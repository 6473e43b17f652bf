"""A JAX function as a native function of another framework: `tg.graft(function, onto="torch")`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tensorgraft.errors import ShapeError
from tensorgraft.frontends.jax.keys import is_key_dtype
from tensorgraft.frontends.jax.program import Program, Spec
from tensorgraft.hub.backend import Backend

Array = Any


class Grafted:
    """A function of the backend's arrays, and of pytrees of them. Everything that is no array is static.

    Arrays of NumPy and of JAX are taken, too; random keys are those of JAX, or their `key_data` as arrays of uint32
    where the function wraps them itself. Dtypes are as in the user's configuration of JAX: without `jax_enable_x64`,
    64-bit arguments are narrowed on their way in.
    """

    def __init__(self, fn: Callable[..., Any], xp: Backend, compiled: bool = False) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn, self.xp, self.is_compiled = fn, xp, compiled
        self._signatures: dict[Any, Signature] = {}

    def compiled(self) -> Grafted:
        """The same function, of which each signature is one compiled program (`tg.jit` gives this)."""
        return type(self)(self.fn, self.xp, compiled=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises TypeError for static arguments that are not hashable, UnsupportedPrimitiveError for what no rule of
        the backend computes, and what the function itself raises while it is traced."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        xp = self.xp
        operands = [self.operand(x) for x in leaves]
        key = (structure, _wide(), *[_key(x) if o is None else o[1] for x, o in zip(leaves, operands, strict=True)])
        try:
            signature = self._signatures.get(key)
        except TypeError:
            odd = next(x for x, o in zip(leaves, operands, strict=True) if o is None and not _hashable(x))
            raise TypeError(
                f"{self.name} was given a {type(odd).__qualname__}, which is neither an array of {xp.name} nor"
                " hashable: pass arrays, numbers, strings, or containers of them"
            ) from None
        if signature is None:
            signature = self._signatures[key] = Signature(self, leaves, structure, operands)
        return signature([o[0] for o in operands if o is not None])

    def operand(self, x: Any) -> tuple[Array, tuple[Any, ...]] | None:
        """(an array of the backend, what a program depends on); None for what is static."""
        xp = self.xp
        array = xp.operand(x)
        if array is None:
            if isinstance(x, jax.Array) and is_key_dtype(x.dtype):
                return xp.asarray(np.array(jax.random.key_data(x))), (x.shape, x.dtype)
            if not isinstance(x, jax.Array | np.ndarray | np.generic):
                return None
            array = xp.asarray(np.array(x))
        dtype = xp.dtype_of(array)
        narrow = jax.dtypes.canonicalize_dtype(dtype)
        if narrow != dtype:
            with xp.native_scope():
                array = xp.astype(array, narrow)
        return array, (self._shape(array), narrow)

    def _shape(self, array: Array) -> tuple[int | str | None, ...]:
        """With None for what is not known, and names for symbols. Raises ShapeError where the rank is not known."""
        shape: Any = self.xp.shape(array)
        if shape is None:
            raise ShapeError(f"{self.name} was given an array whose number of axes is not known: give its shape")
        return tuple([None if n is None else int(n) for n in shape])

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)


def grafted(program: Callable[..., Any], xp: Backend, kind: type[Grafted] = Grafted) -> Any:
    """A function as `Grafted`; a callable pytree that holds arrays (an Equinox model, a `jax.tree_util.Partial`) as a
    module of the framework, whose parameters are its floating-point arrays, named by their paths."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(program)
    held = {jax.tree_util.keystr(path, simple=True, separator="."): x for path, x in leaves if _is_array(x)}
    if not held:
        return kind(program, xp)
    rest = [None if _is_array(x) else x for _, x in leaves]

    def call(arrays: list[Any], *args: Any, **kwargs: Any) -> Any:
        given = iter(arrays)
        filled = [next(given) if _is_array(x) else fixed for (_, x), fixed in zip(leaves, rest, strict=True)]
        return jax.tree.unflatten(structure, filled)(*args, **kwargs)

    call.__name__ = type(program).__name__
    native = kind(call, xp)
    converted = {name: found[0] for name, x in held.items() if (found := native.operand(x)) is not None}
    learnt = {name for name, x in held.items() if jax.numpy.issubdtype(x.dtype, np.inexact)}
    return xp.module(
        lambda arrays, *args, **kwargs: native([arrays[name] for name in held], *args, **kwargs),
        {name: x for name, x in converted.items() if name in learnt},
        {name: x for name, x in converted.items() if name not in learnt},
        name=type(program).__name__,
    )


class Signature:
    """The function for arguments that look the same."""

    def __init__(self, owner: Grafted, leaves: Sequence[Any], structure: Any, operands: Sequence[Any]) -> None:
        fn, seen = owner.fn, self.__dict__
        dynamic = {i for i, o in enumerate(operands) if o is not None}
        fixed = [None if i in dynamic else x for i, x in enumerate(leaves)]

        def flat(*arrays: Any) -> list[Any]:
            given = iter(arrays)
            args, kwargs = jax.tree.unflatten(
                structure, [next(given) if i in dynamic else x for i, x in enumerate(fixed)]
            )
            made, seen["results"] = jax.tree.flatten(fn(*args, **kwargs))
            seen["static"] = [None if _is_arraylike(x) else (x,) for x in made]
            return [jax.numpy.asarray(x) for x in made if _is_arraylike(x)]

        self.results: Any = None  # their structure
        self.static: list[tuple[Any] | None] = []  # what is no array among them
        specs = [o[1] for o in operands if o is not None]
        if any(None in shape for shape, _ in specs):
            from tensorgraft.frontends.jax import unknown

            self.native = unknown.native(owner.xp, flat, specs, owner.name)
        elif any(isinstance(n, str) for shape, _ in specs for n in shape):
            from tensorgraft.frontends.jax.sized import sized

            arrays = [o[0] for o in operands if o is not None]
            self.native = owner.xp.differentiable(sized(flat, specs, owner.xp, arrays))
        else:
            self.native = owner.xp.differentiable(Program(flat, [Spec(*s) for s in specs], owner.is_compiled))

    def __call__(self, arrays: Sequence[Array]) -> Any:
        made = iter(self.native(*arrays))
        return jax.tree.unflatten(self.results, [next(made) if x is None else x[0] for x in self.static])


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray) and not is_key_dtype(x.dtype)


def _is_arraylike(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def _wide() -> bool:
    return bool(jax.config.read("jax_enable_x64"))


def _key(x: Any) -> Any:
    return type(x), x


def _hashable(x: Any) -> bool:
    return getattr(type(x), "__hash__", None) is not None
