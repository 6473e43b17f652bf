"""Numbers of Python that a traced function reads of tensors: `x.sum().item()`, `x.tolist()` inside `tg.jit`.

Such a number is a tensor without axes, float64 or int64, to which Python's arithmetic is done by operators. In calls of
PyTorch it takes the place of an operand, with the promotion of a Python number; among the results of the function and
in what it changes it becomes the number of each call. Where Python needs the number itself (an `if`, a shape), the
question is refused as that of its tensor is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch

from tensorgraft.compiled.source_location import place_of
from tensorgraft.compiled.traced_value_errors import in_extent
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of_backend
from tensorgraft.frontends.torch.core.located_errors import current_line
from tensorgraft.frontends.torch.core.scalars import ScalarNode, tensor_of
from tensorgraft.frontends.torch.core.source_location import program_frame, program_place, source_line
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.core.traced_values import asked_for_value

Tensor = torch.Tensor
_LARGEST = 2.0**63  # beyond 64 bits, which Python's integers are not limited to


def scalar_of(t: Tensor) -> Any:
    """Return the number that a tensor without axes on the device is now."""
    with torch.no_grad():
        dtype = torch.float64 if t.is_floating_point() else torch.int64
        own = t.detach().reshape(()).to(dtype, copy=True)
    return _number(own, t)


def is_scalar(x: Any) -> bool:
    return issubclass(type(x), TracedFloat | TracedInt)


def sum_of(x: Any) -> tuple[Any, Any] | None:
    """Return the number of Python and the traced one of which a traced number is the sum; None for any other value."""
    return getattr(x, "terms", None) if is_scalar(x) else None


def _number(value: Tensor, source: Tensor | None = None) -> Any:
    capture = state.now.capture
    if capture is not None:
        capture.scalars = True
        if source is not None and source.device.type == TYPE:
            capture.origins[id(cell_of(value))] = capture.origins.get(id(cell_of(source)))
    return _later(lambda: value, value.is_floating_point())


def _later(compute: Callable[[], Tensor], floating: bool) -> Any:
    return (TracedFloat if floating else TracedInt)(ScalarNode(compute, floating))


# ---- the numbers -----------------------------------------------------------------------------------------------------


def _needs_number(what: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if state.now.capture is None:
            return getattr(tensor_of(self).item(), what)(*args, **kwargs)
        raise RunsUncompiled(f"needs a number that it reads of a tensor ({what.strip('_')})")

    return method


def _asking(method: Callable[[Tensor, Any], Tensor]) -> Callable[[Any, Any], Any]:
    """Return a comparison method, which reads the truth value of its result."""

    def compare(self: Any, other: Any) -> Any:
        real = is_scalar(other) or isinstance(other, bool | int | float)
        return bool(method(*_operands(self, other))) if real else NotImplemented

    return compare


def _arithmetic(name: str, compute: Callable[[Tensor, Any], Tensor]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make an operator of two numbers and its reflection."""

    def apply(self: Any, other: Any, swapped: bool) -> Any:
        if state.now.capture is None:
            value = tensor_of(self).item()
            return getattr(operator, name)(other, value) if swapped else getattr(operator, name)(value, other)
        if not (is_scalar(other) or isinstance(other, bool | int | float)):
            return NotImplemented

        def computed() -> Tensor:
            x, y = _operands(self, other)
            return compute(y, x) if swapped else compute(x, y)

        if name == "add" and not is_scalar(other):
            out = _later(computed, isinstance(self, float) or isinstance(other, float))
            out.terms = other, self
            return out
        with torch.no_grad():
            return _number(computed())

    return lambda self, other: apply(self, other, False), lambda self, other: apply(self, other, True)


def _operands(self: Any, other: Any) -> tuple[Tensor, Tensor]:
    """Return two numbers as tensors of one dtype."""
    x = tensor_of(self)
    if is_scalar(other):
        y = tensor_of(other)
    else:
        dtype = torch.float64 if isinstance(other, float) else torch.int64
        y = torch.full((), other, dtype=dtype, device=x.device)
    return (x, y) if x.dtype == y.dtype else (x.double(), y.double())


def raising(flag: Tensor, x: Tensor, error: type[Exception], words: str) -> None:
    """Let each call of the compiled function raise an error if `flag` is true. Raises TracedValueError if calls cannot
    raise."""
    capture = state.now.capture
    if capture is None or capture.failures is None:
        raise asked_for_value(x)
    capture.failures.append((flag, error, f"{words} ({current_line()})"))


def _within(method: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Make an operation whose integers are to have 64 bits."""

    def compute(x: Tensor, y: Tensor) -> Tensor:
        out = method(x, y)
        if not out.is_floating_point():
            far = method(x.double(), y.double()).abs() >= _LARGEST
            raising(far, x, OverflowError, "an integer that tg.jit computes exceeds 64 bits")
        return out

    return compute


def _dividing(method: Callable[[Tensor, Tensor], Tensor], words: str) -> Callable[[Tensor, Tensor], Tensor]:
    def compute(x: Tensor, y: Tensor) -> Tensor:
        zero = y == 0
        raising(zero, y, ZeroDivisionError, words.format("float " if y.is_floating_point() else ""))
        return method(x, torch.where(zero, torch.ones_like(y), y))

    return compute


def _power(x: Tensor, y: Tensor) -> Tensor:
    if not x.is_floating_point():  # a negative exponent makes it a float: only the number says which
        raise RunsUncompiled("raises an integer that it reads of a tensor to a power")
    raising((x == 0) & (y < 0), x, ZeroDivisionError, "0.0 cannot be raised to a negative power")
    raising((x < 0) & (y != y.trunc()), x, ArithmeticError, "a power that is complex, of a number read of a tensor")
    out = x**y
    raising(out.isinf() & x.isfinite() & y.isfinite(), x, OverflowError, "(34, 'Numerical result out of range')")
    return out


_DIVISIONS = {
    "truediv": (lambda x, y: x.double() / y.double(), "{}division by zero"),
    "floordiv": (lambda x, y: torch.floor_divide(x, y), "{}division or modulo by zero"),
    "mod": (lambda x, y: torch.remainder(x, y), "{}modulo by zero"),
}
_BINARY: dict[str, Callable[..., Tensor]] = {
    **{name: _within(getattr(torch, name)) for name in ("add", "sub", "mul")},
    **{name: _dividing(*division) for name, division in _DIVISIONS.items()},
    "pow": _power,
}


def _whole(name: str) -> Callable[..., Any]:
    def method(self: Any, *digits: Any) -> Any:
        if digits and digits[0] is not None:
            return _needs_number(f"__{name}__")(self, *digits)
        if state.now.capture is None:
            return getattr(tensor_of(self).item(), f"__{name}__")()
        value = tensor_of(self)
        if not value.is_floating_point():
            return self
        raising(~(value.abs() < _LARGEST), value, OverflowError, "a float that does not fit an integer of 64 bits")
        return _number(getattr(torch, name)(value).long())

    return method


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name in dir(kind):
        if callable(getattr(kind, name)) and name not in _KEPT:
            yield name, _needs_number(name)
    for name, compute in _BINARY.items():
        yield from zip((f"__{name}__", f"__r{name}__"), _arithmetic(name, compute), strict=True)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        yield f"__{name}__", _asking(getattr(torch, name))
    for name in ("round", "floor", "ceil", "trunc"):
        yield f"__{name}__", _whole(name)
    yield "__neg__", lambda self: _number(-tensor_of(self))
    yield "__abs__", lambda self: _number(tensor_of(self).abs())
    yield "__pos__", lambda self: self
    yield "__bool__", lambda self: bool(tensor_of(self) != 0)
    yield "__divmod__", lambda self, other: (self // other, self % other)
    yield "__rdivmod__", lambda self, other: (other // self, other % self)
    yield "__class__", property(lambda self: kind)  # `isinstance(loss.item(), float)`
    yield "__array_ufunc__", _needs_number("__array_ufunc__")
    yield "real", property(lambda self: self)
    yield "imag", property(lambda self: kind())
    yield "__deepcopy__", lambda self, memo: self


_KEPT = {"__class__", "__delattr__", "__dir__", "__getattribute__", "__getstate__", "__init__", "__init_subclass__",
         "__new__", "__setattr__", "__subclasshook__", "__reduce__", "__reduce_ex__", "__sizeof__", "__getnewargs__",
         "__getformat__", "__index__"}  # fmt: skip


def _index(self: Any) -> int:
    value = tensor_of(self)
    if state.now.capture is None:
        return int(value.item())
    raise asked_for_value(value)


TracedFloat: Any = type("TracedFloat", (torch.SymFloat,), dict(_methods(float)))
TracedInt: Any = type("TracedInt", (torch.SymInt,), {**dict(_methods(int)), "__index__": _index})


# ---- calls of PyTorch ------------------------------------------------------------------------------------------------

_RANKS = {torch.bool: 0}


def _rank(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else _RANKS.get(dtype, 1)


def beside(number: Any, tensors: list[Tensor]) -> Tensor:
    """Return a number as a tensor that has the same type promotion and rounding in operations with others."""
    t = tensor_of(number)
    same = [x for x in tensors if _rank(x.dtype) >= _rank(t.dtype)]
    if not same:
        return t.to(torch.get_default_dtype()) if t.is_floating_point() else t
    if any(x.ndim for x in same):
        return t
    dtype = same[0].dtype.to_real() if same[0].dtype.is_complex else same[0].dtype
    if t.is_floating_point():
        return t.to(torch.float32 if dtype.itemsize < 4 else dtype)
    return t.to(dtype) if _rank(dtype) == 1 else t


_NAMES = (
    *("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "remainder", "fmod"),
    *("pow", "float_power", "eq", "ne", "lt", "le", "gt", "ge", "not_equal", "less", "less_equal", "greater"),
    *("greater_equal", "clamp", "clip", "clamp_min", "clamp_max", "masked_fill", "where", "maximum", "minimum"),
    *("xlogy", "copysign"),
)
_OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"]
_OPERANDS = {
    *(getattr(owner, n) for owner in (torch, Tensor) for n in _NAMES if hasattr(owner, n)),
    *(getattr(Tensor, f"{n}_") for n in _NAMES if hasattr(Tensor, f"{n}_")),
    *(f for n in _OPERATORS for r in "ri_" if (f := getattr(Tensor, f"__{r.strip('_')}{n}__", None)) is not None),
    Tensor.fill_,
    torch.rsub,
}
# those that take a tensor of one integer: an index, or a value to be written
_PLACES = {Tensor.__getitem__, Tensor.__setitem__, Tensor.select, Tensor.narrow, torch.select, torch.narrow}
_VALUES = {torch.full, torch.full_like, Tensor.new_full, torch.tensor, torch.as_tensor, torch.asarray}


def substituted(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], taking: Container[Any]
) -> tuple[Any, dict[str, Any], Any]:
    """Return the arguments of a call of PyTorch with tensors in the place of traced numbers, and what its result is to
    become (a function, or None). Those in `taking` get the numbers. Raises TracedValueError where a call needs their
    values."""
    found = [x for x in _parts((*args, *kwargs.values())) if is_scalar(x)]
    if not found:
        return args, kwargs, None
    tensors = [x for x in _parts((*args, *kwargs.values())) if isinstance(x, Tensor)]
    finish = None
    if func in _OPERANDS and tensors and "alpha" not in kwargs and all(x.device.type == TYPE for x in tensors):
        if func in (torch.where, Tensor.where):
            tensors = [x for x in tensors if x is not args[0 if func is torch.where else 1]]
        narrow = [x for x in tensors if x.dtype.is_floating_point and x.dtype.itemsize < 4]
        if narrow and not any(x.ndim for x in tensors) and not _writes(func):
            finish = lambda out: out.to(narrow[0].dtype) if out.is_floating_point() else out  # noqa: E731
        change = lambda x: beside(x, tensors)  # noqa: E731
    elif func in _PLACES:
        change = tensor_of
    elif func in _VALUES:
        change = lambda x: beside(x, [])  # noqa: E731
        if args and is_scalar(args[0]):  # alone
            args, finish = ([args[0]], *args[1:]), lambda out: out.reshape(())
    elif func in taking:
        return args, kwargs, None
    else:
        raise asked_for_value(tensor_of(found[0]))
    with torch.no_grad():
        args, kwargs = _mapped(change, args), _mapped(change, kwargs)
    return args, kwargs, finish


def _writes(func: Any) -> bool:
    name = func.__name__
    return name.startswith("__i") if name.startswith("__") else name.endswith("_")


def _parts(x: Any) -> Iterator[Any]:
    if isinstance(x, tuple | list):
        for one in x:
            yield from _parts(one)
    else:
        yield x


def _mapped(change: Callable[[Any], Any], x: Any) -> Any:
    if type(x) in (tuple, list):
        return type(x)(_mapped(change, one) for one in x)
    if type(x) is dict:
        return {key: _mapped(change, one) for key, one in x.items()}
    return change(x) if is_scalar(x) else x


def _item(calls: Any, x: Any) -> Any:
    capture = calls.capture
    if not _is_readable(capture, x) or x.numel() != 1:
        return NotImplemented
    if x.device.type == TYPE:
        return scalar_of(x)
    if capture.host is None or capture.idle or x.device.type != "cpu":
        return NotImplemented
    live = capture.host.live(x)
    if live is None or not live.of_argument:
        return NotImplemented
    with torch.no_grad():
        return scalar_of(x.detach().to(slot_of_backend(capture.backend).device))


def _is_readable(capture: Any, x: Any) -> bool:
    """Return whether numbers can stand for the values of a tensor."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or type(x) not in _PLAIN:
        return False
    if x.dtype is torch.bool or x.dtype.is_complex or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return capture.values is None or (x.device.type == TYPE and x.is_floating_point())


def _tolist(calls: Any, x: Any) -> Any:
    if not _is_readable(calls.capture, x) or x.device.type != TYPE or x.numel() > _MOST:
        return NotImplemented
    if any(cell_of(x).array is constant for constant in calls.capture.constants):  # its values are known
        return NotImplemented
    return scalar_of(x) if x.ndim == 0 else [_tolist(calls, row) for row in x.detach().unbind()]


_MOST = 64  # numbers of one list: each is computed by itself
_PLAIN = (Tensor, torch.nn.Parameter)


def _converted(calls: Any, x: Any) -> Any:
    """Refuse conversions of a tensor to a Python number (`float(x)`, `int(x)`), which no traced number can replace."""
    capture = calls.capture
    if not isinstance(x, Tensor) or x.device.type != TYPE or type(x) not in _PLAIN or x.numel() != 1:
        return NotImplemented
    if capture.world is None or capture.values is not None or decides():
        return NotImplemented
    raise RunsUncompiled("converts a tensor by float() or int() (.item() can be compiled)")


def decides() -> bool:
    """Return whether the program's line is a condition or a loop, or the expression in it is an extent."""
    frame = program_frame()
    if source_line(program_place()).startswith(("for ", "while ", "if ", "elif ", "assert ")):
        return True
    return frame is not None and in_extent(place_of(frame).node)


CALLS: dict[Any, Callable[..., Any]] = {
    Tensor.item: _item,
    Tensor.tolist: _tolist,
    Tensor.__float__: _converted,
    Tensor.__int__: _converted,
}
