"""Errors for values that a JAX function reads while it is traced: the numbers among its arguments that they depend on,
and the message."""

from __future__ import annotations

import ast
import os
import re
import site
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NamedTuple, NoReturn

import jax
from jax.core import Tracer

_JAX = (str(Path(jax.__file__).parent) + os.sep, str(Path(jax.__file__).parent.parent / "jaxlib") + os.sep)
_OURS = str(Path(__file__).parents[2]) + os.sep
_LIBRARIES = tuple(site.getsitepackages())
_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_WORDS = re.compile(r"concrete values|static integers|Tracer\b|[Tt]racer>|Non-hashable static|__hash__ and __eq__")
_CONVERSIONS = ("`float` function", "`int` function", "`complex` function", "item() method", "format string",
                "unhashable type")  # fmt: skip
_SIZED = {"argwhere", "flatnonzero", "intersect1d", "nonzero", "setdiff1d", "setxor1d", "union1d", "unique", "where"}
_SHAPES = re.compile(r"^Shapes must be|concrete values of integer type")


class FramePlace(NamedTuple):
    """The place of a frame when an error went through it."""

    f_code: CodeType
    f_lasti: int
    f_locals: dict[str, Any]
    f_globals: dict[str, Any]

    def lies_in(self, *folders: str) -> bool:
        return self.f_code.co_filename.startswith(folders)


class Failed(Exception):
    """Raised when a trace ends with `error`, which is examined while the trace still exists.

    Arguments:
        numbers: the slots of those inputs that are Python numbers.
        inputs: the slots of all inputs.
        trace: what `jax.make_jaxpr` traces with.
    """

    def __init__(
        self, error: Exception, numbers: Sequence[int] = (), inputs: Sequence[int] = (), trace: Any = None
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.reads_value = isinstance(error, _ERRORS) or (
            isinstance(error, TypeError | IndexError | ValueError) and _WORDS.search(str(error)) is not None
        )
        self._inputs, self._numbers = list(inputs), set(numbers)
        self._frames = list(_frames(error.__traceback__))
        self._tracer = self._needed_array() if self.reads_value else None
        self._positions = _positions(self._tracer, trace)
        self.argument: Any = None
        self.effects: Callable[[], None] | None = None  # does again what the function has changed before its own error
        self.origin = _origin(self._tracer) if self._tracer is not None else None

    def numbers(self) -> set[int] | None:
        """Return the slots of the numbers whose values were asked for; none where it was not those, None if unknown."""
        if not self.reads_value or self._positions is None:
            return None
        return {self._inputs[k] for k in self._positions} & self._numbers

    @property
    def frame(self) -> FramePlace | None:
        """The program's innermost: that of the user's own files, else one of a library."""
        known = [f for f in self._frames if not f.lies_in(*_JAX, _OURS)]
        program_frames = [f for f in known if not f.lies_in(*_LIBRARIES)]
        return program_frames[-1] if program_frames else known[-1] if known else None

    def _needed_array(self) -> Any:
        """Return the array whose value was needed, found in the innermost of JAX's frames or in the program's line."""
        for frame in reversed(self._frames):
            if not frame.lies_in(*_JAX) or "Non-hashable" in str(self.error):
                break
            for x in frame.f_locals.values():
                if (tracer := _tracer_in(x)) is not None:
                    return tracer
        frame = self.frame
        if frame is None:
            return None
        from tensorgraft.compiled.source_location import held_by, place_of

        node: Any = place_of(frame).node  # type: ignore[arg-type]
        named = [held_by(frame, part) for part in ast.walk(node)] if node is not None else []  # type: ignore[arg-type]
        tracers = [x for x in named if isinstance(x, Tracer)]
        return next((x for x in tracers if not x.ndim), tracers[0] if tracers else None)


def raise_(failed: Failed, name: str, fn: Callable[..., Any]) -> NoReturn:
    """Not inside of an `except` clause, of which the error would tell, too."""
    error = in_words(failed, name, fn)
    if error is failed.error:
        if failed.effects is not None:
            failed.effects()
        raise error
    raise error from failed.error


def _writes_from_outside(error: Exception) -> bool:
    """Return whether it is Flax's error of a variable that is written by a trace which it was not made in."""
    flax = sys.modules.get("flax.errors")
    return flax is not None and isinstance(error, flax.TraceContextError)


def _refused_write(failed: Failed, fn: Callable[..., Any]) -> Exception:
    from tensorgraft.errors import TracedValueError

    name, first_line = getattr(fn, "__name__", type(fn).__name__), str(failed.error).partition(" (http")[0]
    return TracedValueError(
        f"{name} writes a variable of flax.nnx that it does not reach by its arguments."
        f" ({first_line})\n"
        "  pass it:  the module, the optimizer or the nnx.Rngs that holds it, as an argument, which is then written"
    )


def in_words(failed: Failed, name: str, fn: Callable[..., Any]) -> Exception:
    """Return the error to raise: ShapeError or TracedValueError with advice if a traced value was needed, else the
    program's own error. `name`: the public function that traces."""
    if not failed.reads_value:
        return failed.error if not _writes_from_outside(failed.error) else _refused_write(failed, fn)
    from tensorgraft.compiled import traced_value_errors

    x, frame, error = failed._tracer, failed.frame, failed.error
    if x is None or frame is None:
        return failed.error
    failed.argument = "an argument of", fn
    origin = failed.origin if failed.origin is not None else failed.argument
    traced = traced_value_errors.TracedArray(x, x.dtype, x.shape, origin, name)
    where: Any = frame
    message = str(error)
    translated: Exception
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError) or "size argument of" in message or x.ndim:
        if isinstance(error, jax.errors.TracerArrayConversionError) or (x.ndim and _converts(message)):
            translated = traced_value_errors.value_needed(where, traced, "array")
        else:
            translated = traced_value_errors.result_shape_needed(
                where, _array_in_line(failed, traced), _sized(_call_expression(frame))
            )
    elif isinstance(error, jax.errors.TracerBoolConversionError) and _line_needs_value(failed, "__bool__"):
        translated = traced_value_errors.value_needed(where, traced, "bool")
    elif _SHAPES.search(message) and (shape := _shape_with(failed, x)) is not None:
        translated = traced_value_errors.shape_needed(where, _call_expression(frame), shape, traced)
    elif isinstance(error, jax.errors.TracerArrayConversionError) or _converts(message):
        translated = traced_value_errors.value_needed(where, traced, "item")
    else:
        translated = traced_value_errors.value_needed(where, traced, "index")
    return type(translated)(_of_jax(str(translated)))


def _array_in_line(failed: Failed, x: Any) -> Any:
    """Return the array in the program's line, which is passed to a function that counts by itself: the error is to be
    about it and not about the count."""
    from tensorgraft.compiled.source_location import held_by, place_of

    frame: Any = failed.frame
    if x.shape or frame is None:
        return x
    node = place_of(frame).node
    named = [held_by(frame, part) for part in ast.walk(node)] if node is not None else []
    array = next((y for y in named if isinstance(y, Tracer) and y.ndim), None)
    if array is None:
        return x
    return x._replace(value=array, dtype=array.dtype, shape=array.shape, origin=_origin(array) or failed.argument)


def _sized(name: str) -> list[tuple[str, str]]:
    return [("bound the size", f"jnp.{name}(..., size=n), where n is always enough")] if name in _SIZED else []


def _converts(message: str) -> bool:
    return any(word in message for word in _CONVERSIONS)


def _line_needs_value(failed: Failed, name: str) -> bool:
    """Return True if the program's own line asks for the value, not a function of JAX that it calls."""
    names = [f.f_code.co_name for f in failed._frames]
    return name in names and failed._frames[names.index(name) - 1] == failed.frame


def _shape_with(failed: Failed, x: Any) -> Any:
    """Return the shape that JAX was given, with `x` in it."""
    for frame in failed._frames:
        if frame.lies_in(*_JAX):
            for value in frame.f_locals.values():
                if value is x or (isinstance(value, tuple | list) and any(n is x for n in value)):
                    return value
    return None


def _call_expression(frame: FramePlace) -> str:
    from tensorgraft.compiled.source_location import place_of
    from tensorgraft.compiled.traced_value_errors import short_name

    node: Any = place_of(frame).node  # type: ignore[arg-type]
    return short_name(node) or "this call"


def _of_jax(text: str) -> str:
    """Ways out as they are written in JAX."""
    for array_api_words, jax_words in (
        ("tg.transforms.error_if", "eqx.error_if"),
        ("tg.transforms.", "jax.lax."),
        ("functions of array_api", "functions of jax.numpy"),
        ("array_api.", "jnp."),
    ):
        text = text.replace(array_api_words, jax_words)
    return text


# ---- tracers ---------------------------------------------------------------------------------------------------------


def _frames(at: TracebackType | None) -> Iterator[FramePlace]:
    while at is not None:
        frame = at.tb_frame
        yield FramePlace(frame.f_code, at.tb_lasti, frame.f_locals, frame.f_globals)
        at = at.tb_next


def _tracer_in(x: Any, depth: int = 2) -> Any:
    if isinstance(x, Tracer):
        return x
    if not depth:
        return None
    parts: Sequence[Any] = ()
    if isinstance(x, slice):
        parts = (x.start, x.stop, x.step)
    elif isinstance(x, tuple | list):
        parts = x
    elif isinstance(x, dict):
        parts = list(x.values())
    return next((tracer for part in parts if (tracer := _tracer_in(part, depth - 1)) is not None), None)


def _positions(tracer: Any, trace: Any) -> list[int] | None:
    """Return the inputs of a trace that an array depends on; None where that cannot be told."""
    if tracer is None or getattr(tracer, "_trace", None) is not trace:
        return None
    try:
        inputs = tracer._trace.frame.find_progenitors(tracer)[0]
    except (AttributeError, TypeError):  # no interface of JAX's
        return None
    return None if inputs is None else list(inputs)


def _origin(tracer: Any) -> Any:
    """Return the place in the program where it was computed; None for an argument."""
    source = getattr(getattr(tracer, "parent", None), "source_info", None)
    if source is None or source.traceback is None:
        return None
    from tensorgraft.compiled.source_location import Place

    codes, instructions = source.traceback.raw_frames()
    for code, instruction in zip(codes, instructions, strict=True):
        if not code.co_filename.startswith((*_JAX, _OURS, *_LIBRARIES, "<frozen")):
            return Place(code, instruction)
    return None
