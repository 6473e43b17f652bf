"""The errors of tensorgraft that are not those of a program's own framework."""

from __future__ import annotations


class BackendNotAvailableError(ImportError):
    """An unknown backend, or one whose framework is not installed."""


class MissingNameError(ImportError):
    """A name that is not public, and that this needs, is missing in the installed version of a framework."""


class CompilationError(RuntimeError):
    """Raised for a function that does something a compiled program cannot do."""


class TracedValueError(CompilationError):
    """A program asked for the value of something that is only being traced."""

    # so that tf.function, which raises errors again with more information, keeps the class
    __init__ = Exception.__init__


class ShapeError(TracedValueError):
    """A program needs a shape, an extent, the bound of a slice or a count that depends on values being traced."""


class DerivativeError(NotImplementedError, ValueError):
    """Raised for a derivative of a function that can be run, but not differentiated in this way.

    JAX raises one or the other of the two base classes, depending on the reason.
    """

    __init__ = Exception.__init__  # see above


class FallbackError(NotImplementedError):
    """An operator has no kernel on the device, and the user forbade the CPU fall-back."""


class FallbackWarning(UserWarning):
    """A warning that the CPU computed something that the device lacks."""


class CheckError(RuntimeError):
    """A condition that a program gave to `error_if` holds."""
