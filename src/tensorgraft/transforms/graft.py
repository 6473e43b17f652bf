"""`tg.graft`: a program of one framework as a native callable of another."""

from __future__ import annotations

from typing import Any

from tensorgraft.transforms.program_kinds import PROGRAM_KINDS, unknown_program


def graft(program: Any, *, onto: str) -> Any:
    """Return a program of one framework as a native callable of another.

    A `torch.nn.Module` onto `"jax"` is `(apply, params, buffers)`, a pure function and its state, with names as in
    `state_dict()`:

        apply, params, buffers = tg.graft(module, onto="jax")
        out, buffers = apply(params, buffers, x, key=jax.random.key(0))

    So is the result of `torch.export.export`. `jax.jit`, `jax.grad`, `jax.vmap`, `jax.export` and Optax work on it. The
    user's configuration of JAX applies: without `jax_enable_x64`, 64-bit results are narrowed, and int32 arguments
    stand for PyTorch's int64. `key` is for modules that draw random numbers. The derivative is that of PyTorch's
    backward pass.

    Onto `"tensorflow"` it is a `tf.Module`, whose `state` has the variables by their names in `state_dict()`:
    parameters (trainable if they require gradients), and buffers, which calls write as the module does:

        m = tg.graft(module, onto="tensorflow")
        with tf.GradientTape() as tape:
            loss = loss_fn(m(x, seed=0), y)
        gradients = tape.gradient(loss, m.trainable_variables)
        tf.saved_model.save(m, directory, signatures=m.get_concrete_function(tf.TensorSpec(x.shape, x.dtype)))

    `seed`, an int or two integers, is for modules that draw random numbers. The saved model needs only TensorFlow.

    Onto `"numpy"` it is a function of arrays, for inference: `f(x)`, and after that `f.save(directory)`, which
    `tg.load(directory)` reads as a function that needs only NumPy.

    A JAX function onto `"torch"`, `"tensorflow"` or `"numpy"` is a function of that framework's arrays, in the same
    pytrees, computed by that framework; JAX traces it once for each structure, shapes and static values:

        f = tg.graft(jax_function, onto="torch")
        f(params, x).sum().backward()

    Its derivatives, of any order, are those of JAX, custom ones included; `torch.func` works on it, and `tg.jit(f)`
    compiles it. `torch.compile`, `torch.export` and `make_fx` trace into it, `torch.jit.trace` and `torch.fx` call it.
    Onto TensorFlow, extents may be unknown. A callable pytree with arrays in it (an Equinox model) becomes a
    `torch.nn.Module` (or a `tf.Module`, which is a layer of Keras), whose parameters are named by their paths; so does
    a module of Flax's nnx, whose other variables become buffers that calls write. Objects of nnx among the arguments
    are written, too. Python numbers are inputs, of weak types, unless the function reads their values; other Python
    values are static. Without `jax_enable_x64`, 64-bit arguments are narrowed. On tensors of `tg.device("jax")`, JAX
    itself computes.

    A JAX function onto `"jax"` computes with quantised arrays (`tg.quantize`) by the rules for these, whichever
    functions of `jax.numpy` and `jax.lax` it calls. JAX itself computes everything else in it; transforms of JAX work
    on it, and a callable pytree remains one.

    A `tf.function`, or a `ConcreteFunction`, onto any backend is a function of that backend's arrays; TensorFlow traces
    it once for each signature, and the backend computes its graph, which may be a whole training step. It reads and
    writes the `tf.Variable`s. `tg.jit` compiles it.

        step = tg.graft(tf_step, onto="jax")
        loss = step(x, y)

    So is a method of a model of Keras, or of a `tf.Module`: `tg.graft(model.train_step, onto="jax")((x, y))`.

    A `tf.Module`, or a layer or model of Keras, becomes a module with its variables onto `"torch"` and `"tensorflow"`,
    `(apply, params, buffers)` onto `"jax"`, and a function that can be saved onto `"numpy"`. Derivatives are those of
    TensorFlow's tape, custom ones included. The folder of a SavedModel (also of TensorFlow 1) and the file of a frozen
    graph become mappings of their signatures.

    The path of a file of `torch.export` (.pt2) or `jax.export` (.stablehlo) stands for its program, a module or a
    function.

    An ONNX model, or the path of its file, becomes a module with its weights onto `"torch"` and `"tensorflow"`,
    `(apply, params, buffers)` onto `"jax"`, and a function that can be saved onto `"numpy"`:

        net = tg.graft("model.onnx", onto="torch")

    Raises:
        TypeError: for unknown programs and frameworks.
        FileNotFoundError: for a path without a SavedModel, a frozen graph or an ONNX model.
        ValueError: for an ONNX model that is broken (`InvalidModelError`).
        BackendNotAvailableError: for a backend unknown or not installed.
        ModuleNotFoundError: for a function, if JAX is not installed; for an ONNX model, if onnx is not.
        NotImplementedError: for an operation without a rule (of TensorFlow: from the call, before it computes).

    >>> import jax.numpy as jnp, tensorgraft as tg, torch
    >>> tg.graft(jnp.square, onto="torch")(torch.tensor([1.0, 3.0]))
    tensor([1., 9.])
    """
    for kind in PROGRAM_KINDS:
        if kind.matches(program):
            return kind.graft(program, onto)
    raise unknown_program(program, onto)
