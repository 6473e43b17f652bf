"""`tg.explain`: the program of a call under `tg.jit`, and its requirements."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from tensorgraft.compiled.explanation import Explanation


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Explain how `tg.jit(fn)` compiles the call `fn(*args, **kwargs)`: what it captures, what it costs and why it was
    traced.

    The call is traced and compiled, but not run: tensors, gradients, optimizers, modules and random states do not
    change, nor do lists, dictionaries and objects that `fn` refers to. Output that it prints appears.

        print(tg.explain(step, x, y))

    Arguments:
        fn: a function or a module of a PyTorch program on the device, compiled by `tg.jit` or not. For a compiled one
            the explanation includes which calls were traced again, and why.

    Raises:
        TracedValueError: if `fn` reads the value of a tensor, as from `tg.jit`.
        TypeError: on a backend that does not compile.

    >>> import tensorgraft as tg, torch
    >>> tg.explain(lambda x: (x * 2).sum(), torch.ones(3, device=tg.device("jax"))).results
    1
    """
    from tensorgraft.frontends.torch.compiled.explain import explain_call
    from tensorgraft.frontends.torch.compiled.module import function_of
    from tensorgraft.transforms.jit import Jit

    fn = function_of(fn)
    if isinstance(fn, Jit):
        fn = fn.decided(args, kwargs)
    elif isinstance(fn, types.MethodType) and isinstance(fn.__func__, Jit):
        fn = types.MethodType(fn.__func__.decided((fn.__self__, *args), kwargs), fn.__self__)
    return explain_call(fn, args, kwargs)
