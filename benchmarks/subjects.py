"""What is compared: one network, for inference or training, on tensorgraft, by hand in JAX, and on its peers.

A subject gives a function that makes one call, waits for it, and returns a number that says whether it is right: the
loss of a training step, the mean square of what inference gives. Each lives in a process of its own (`worker`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.networks import Work


@dataclass
class Subject:
    call: Callable[[], float]
    trace: Callable[[], float] | None = None  # seconds that the program takes to be traced once more
    memory: Callable[[], int] | None = None  # bytes that the compiled program needs


def ours(work: Work, training: bool, **options: Any) -> Subject:
    import tensorgraft as tg

    _start_jax()
    work = work.on(tg.device("jax"))
    if training:
        plain = work.training_step()
        step = tg.jit(plain, **options)
        return Subject(lambda: step(work.inputs, work.targets).item(), *_of_jit(plain, work.inputs, work.targets))
    plain = work.inference()
    infer = tg.jit(plain, **options)
    return Subject(lambda: _told(tg.to_backend_array(infer(work.inputs))), *_of_jit(plain, work.inputs))


def _start_jax() -> None:
    """Import JAX and have it find its devices, as the program by hand does before its first call."""
    import jax.numpy as jnp

    jnp.zeros(1).block_until_ready()


def ours_eager(backend: str, work: Work, training: bool) -> Subject:
    import tensorgraft as tg

    return torch_eager(work.on(tg.device(backend)), training)


def _of_jit(plain: Any, *args: Any) -> tuple[Callable[[], float], Callable[[], int]]:
    import tensorgraft as tg

    def trace() -> float:
        again = tg.jit(plain)
        again(*args)
        return again.report.trace_seconds

    def memory() -> int:
        found = tg.explain(plain, *args).program.memory
        return found.arguments + found.outputs + found.temporary - found.alias

    return trace, memory


def by_hand(work: Work, training: bool) -> Subject:
    import jax
    import jax.numpy as jnp
    from benchmarks import networks_by_hand as hand

    state: dict[str, np.ndarray] = {}
    known: dict[int, np.ndarray] = {}  # tied parameters are one array
    for name, value in work.model.state_dict().items():
        state[name] = known.setdefault(value.data_ptr(), value.numpy().copy())
    params, statistics = hand.load(state)
    inputs, targets = (jnp.asarray(x.numpy().astype(np.float32 if x.is_floating_point() else np.int32))
                       for x in (work.inputs, work.targets))  # fmt: skip
    if training:
        fn, donated = hand.training_step(work.name), hand.DONATED
        held: list[Any] = [params, statistics, hand.NETWORKS[work.name][1].init(params)]
        rest: tuple[Any, ...] = (inputs, targets)
    else:
        fn, donated, held, rest = hand.inference(work.name), (), [params, statistics], (inputs,)
    jitted = jax.jit(fn, donate_argnums=donated)

    def call() -> float:
        if not training:
            return _told(jitted(*held, *rest))
        *held[:], loss = jitted(*held, *rest)
        return float(loss)

    def trace() -> float:
        start = time.process_time()
        jax.make_jaxpr(lambda *args: fn(*args))(*held, *rest)  # not from JAX's cache
        return time.process_time() - start

    def memory() -> int:
        found = jitted.lower(*held, *rest).compile().memory_analysis()
        return (found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
                - found.alias_size_in_bytes)  # fmt: skip

    return Subject(call, trace, memory)


def torch_eager(work: Work, training: bool) -> Subject:
    return _on_the_cpu(work, training, lambda fn: fn)


def torch_compile(work: Work, training: bool) -> Subject:
    import torch

    work.model.compile()  # a step around it: Dynamo does not capture backward passes
    return _on_the_cpu(work, training, torch.compile if not training else lambda fn: fn)


def _on_the_cpu(work: Work, training: bool, compiled: Callable[[Any], Any]) -> Subject:
    if training:
        step = compiled(work.training_step())
        return Subject(lambda: step(work.inputs, work.targets).item())
    infer = compiled(work.inference())
    return Subject(lambda: _told(infer(work.inputs).cpu()))


def torchax(work: Work, training: bool) -> Subject:
    """As its own examples have it: a jittable module, and a training step with Optax."""
    import functools

    import torchax
    from benchmarks import networks_by_hand as hand
    from torch.nn import functional as F
    from torchax import interop, train

    torchax.enable_globally()
    module = interop.JittableModule((work.model.train() if training else work.model.eval()).to("jax"))
    inputs, targets = work.inputs.to("jax"), work.targets.to("jax")
    if not training:
        return Subject(lambda: _told(interop.jax_view(module(inputs))))
    optimizer = hand.NETWORKS[work.name][1]
    weights, buffers = module.params, module.buffers
    held = [weights, interop.call_jax(optimizer.init, weights)]
    step = train.make_train_step(
        functools.partial(module.functional_call, "forward"),
        lambda out, labels: F.cross_entropy(out.flatten(0, -2), labels.flatten()),
        optimizer,
    )
    step = interop.jax_jit(step, kwargs_for_jax_jit={"donate_argnums": (0, 2)})

    def call() -> float:
        loss, held[0], held[1] = step(held[0], buffers, held[1], inputs, targets)
        return float(interop.jax_view(loss))

    return Subject(call)


def _told(out: Any) -> float:
    """Waits for a result, and looks at little of it."""
    return float(np.square(np.asarray(out)[0], dtype=np.float64).mean())


SUBJECTS: dict[str, Callable[[Work, bool], Subject]] = {
    "tensorgraft": ours,
    "tensorgraft, compiled in the background": functools.partial(ours, compile="background"),
    "tensorgraft, eager": functools.partial(ours_eager, "jax"),
    "tensorgraft on TensorFlow, eager": functools.partial(ours_eager, "tensorflow"),
    "tensorgraft, eager, memory apart": functools.partial(ours_eager, "jax"),
    "tensorgraft, every operator compiled": functools.partial(ours_eager, "jax"),
    "JAX by hand": by_hand,
    "CPU PyTorch": torch_eager,
    "torch.compile": torch_compile,
    "torchax": torchax,
}
