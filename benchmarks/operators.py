"""Every operator of ATen that the device computes beside CPU PyTorch's, after warm-up: eager, and alone in `tg.jit`.

Arguments follow from the schema of an operator: shapes and dtypes are tried until CPU PyTorch takes them. What is
reported is where ours takes more than three times as long at any size. Eager operations compute as they do by default
(`docs/tiers.md`).
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.measure import Row, interleaved

import tensorgraft as tg

Tensor = torch.Tensor
Call = tuple[tuple[Any, ...], dict[str, Any]]

SIZES = (1 << 15, 1 << 17, 1 << 19)  # elements of an operand
LIMIT = 3
A_CALL = 100e-6  # seconds: a call of a compiled function, which other areas time
WARM = 256, 1.5  # calls until those that recur are compiled, at most; seconds
LONGEST = 0.02  # seconds that one call on the CPU may take
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
INDICES = ("index", "indices", "indices1", "index1", "repeats")
MASKS = ("mask", "condition", "attn_mask")
REASONS = {
    "`jax.numpy` takes as long": "atan2 elu log1p logaddexp softplus softplus_backward",
    "XLA has no such factorisation, and it is a loop": "linalg_ldl_factor_ex linalg_ldl_solve",
    "XLA has no loop over elements: steps of whole rows, between transpositions": "logcumsumexp _logcumsumexp",
    "XLA does not vectorise this sum": "nansum",
    "XLA does not vectorise this sum; eager it is CPU PyTorch's kernel and the call": "_softmax_backward_data",
    "`jax.numpy` takes twice as long in place": "pow_",
    "XLA multiplies one element after the other": "prod",
    "XLA takes indices one by one, each with its bounds": """
        scatter scatter_add scatter_reduce index_put _index_put_impl_ put index_add index_copy histogram histc
        adaptive_max_pool2d_backward adaptive_max_pool3d_backward max_pool2d_with_indices_backward
        max_pool3d_with_indices_backward embedding_dense_backward
    """,
    "XLA keeps complex numbers whole: their parts are taken, then stacked": "view_as_real_copy",
    "computed in double precision, which rounds correctly": "exp2 log2 logaddexp2 sin cos tan _foreach_log2",
    "degrees are a tensor: all elements go through the steps of the greatest": """
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
        special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
        special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_hermite_polynomial_h
        special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
    """,
    "PyTorch computes it in parts on a device": "mish_backward",
    "called alone, it is made of parts that have derivatives": """
        _scaled_dot_product_flash_attention_for_cpu_backward
    """,
    "its order is that of sorted random keys, the same on every backend": "randperm",
    "random numbers are counter-based, the same on every backend": """
        rand randn randint normal normal_ uniform_ random_ multinomial
        rrelu_with_noise_ rrelu_with_noise rrelu_with_noise_functional
    """,
    "all elements are drawn until the last is accepted": """
        poisson binomial _standard_gamma _sample_dirichlet
    """,
    "the CPU's formula gives fewer digits": "_standard_gamma_grad _dirichlet_grad",
    "distances are differences, CPU PyTorch's of more than 25 rows a product": "_cdist_forward _pdist_forward",
    "each result is a tensor of its own": "unbind_copy split_copy split_with_sizes_copy unsafe_split",
}
# what would not say anything: it computes nothing, its memory is nobody's, or its time is that of what it calls
LEFT_OUT = (
    *("empty", "new_empty", "set_", "resize", "_local_scalar_dense", "record_stream", "_has_", "sym_", "is_pinned"),
    *("_nested", "_native_multi_head", "_fused_", "_amp_", "addr", "ger"),
    *("_native_batch_norm_legit.no_stats", "_pdist_backward", "fractional_max_pool3d_backward", "native_batch_norm"),
    *("linalg_matrix_sqrth", "linalg_polar"),  # CPU PyTorch reads past the end of what is tried here
)


def shapes(elements: int) -> list[tuple[int, ...]]:
    """Return a matrix, a vector, images, volumes, sequences with so many elements, square where that is possible."""
    side = math.isqrt(elements)
    height = math.isqrt(elements // 32)
    depth = round((elements // 16) ** (1 / 3))
    return [(side, side), (2, 16, height, height), (elements,), (2, 16, elements // 32), (2, 8, depth, depth, depth),
            (16, math.isqrt(elements // 16), math.isqrt(elements // 16)), ()]  # fmt: skip


def tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if name in INDICES:
        return torch.randint(0, max(1, min(shape, default=1)), shape)
    if name in MASKS:
        return torch.rand(shape) < 0.5
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(1, 9, shape, dtype=dtype)
    return torch.rand(shape, dtype=dtype) * 0.8 + 0.1


def argument(name: str, kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """A value for an argument without a default. Raises KeyError for kinds that have none."""
    if kind == "Tensor":
        return tensor(name, shape, dtype)
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return [tensor(name, shape, dtype) for _ in range(1 if name in INDICES else 3)]
    if kind == "List[int]":
        if "size" in name and "kernel" not in name:
            return list(shape[-2:] if "output" in name else shape)
        spatial = max(1, len(shape) - 2)
        numbers = {"kernel_size": 3, "padding": 1, "dilation": 1, "stride": 2, "pad": 1, "dim": -1, "dims": -1}
        return [numbers.get(name, 1)] * (1 if "dim" in name else 2 * spatial if name == "pad" else spatial)
    if kind == "int":
        return {"dim": -1, "dim0": 0, "dim1": -1, "k": 3, "n": shape[-1] if shape else 8, "groups": 4}.get(name, 1)
    return {"float": 0.5, "bool": False, "number": 2, "Scalar": 2, "str": "mean"}[kind]


def _positive_definite(x: Tensor) -> Tensor:
    return x @ x.mT + x.shape[-1] * torch.eye(x.shape[-1]) if x.dim() > 1 else x


def _degrees(x: Any) -> Any:
    return torch.randint(0, 12, x.shape).to(x.dtype) if isinstance(x, Tensor) else 5


# {operator, or how its name begins, argument: what makes it one for which there is something to compute}
SUITED: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("linalg_cholesky_ex", "self"): _positive_definite,
    ("special_zeta", "self"): lambda x: x * 8 + 1.1 if isinstance(x, Tensor) else x,
    ("upsample", "input_size"): lambda sizes: [*sizes[:2], *(n // 2 for n in sizes[2:])],
    ("_upsample", "input_size"): lambda sizes: [*sizes[:2], *(n // 2 for n in sizes[2:])],
    ("randperm", "n"): lambda n: n * n,
    ("_softmax_backward", "input_dtype"): lambda dtype: torch.float32,
    ("_log_softmax_backward", "input_dtype"): lambda dtype: torch.float32,
    **{(f"special_{kind}", "n"): _degrees for kind in ("chebyshev", "shifted", "hermite", "laguerre", "legendre")},
}


def suited(op: Any, name: str, value: Any) -> Any:
    """The value of an argument, in the domain of the operator."""
    packet = op.name().partition("::")[2]
    return next((fit(value) for (start, n), fit in SUITED.items() if n == name and packet.startswith(start)), value)


def call_of(op: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Call:
    args, kwargs = [], {}
    for a in op._schema.arguments:
        kind = str(a.type)
        if a.has_default_value() or (kind.startswith("Optional") and a.name not in ("train", "correction")):
            if not a.kwarg_only:
                args.append(a.default_value)
            continue
        value = suited(op, a.name, argument(a.name, kind, shape, dtype))
        if a.kwarg_only:
            kwargs[a.name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def found(op: Any, elements: int) -> Call | None:
    """Return arguments that CPU PyTorch takes; None where none of these were."""
    for shape, dtype in itertools.product(shapes(elements), DTYPES):
        try:
            args, kwargs = call_of(op, shape, dtype)
            op(*args, **kwargs)
        except KeyError:
            return None
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
            continue
        return args, kwargs
    return None


def moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return [moved(x, device) for x in value] if isinstance(value, list) else value


def wait(result: Any) -> None:
    """Wait for the last tensor of a result, which one program has computed with the others."""
    while isinstance(result, list | tuple) and result:
        result = result[-1]
    if isinstance(result, Tensor) and result.numel():
        result.reshape(-1)[:1].tolist()


def burst(fn: Callable[[], Any], calls: int, on_device: bool) -> Callable[[], None]:
    """So many calls, and at the end a wait for the device, whose CPU time counts wherever it is spent."""

    def run() -> None:
        for _ in range(calls):
            result = fn()
        if on_device:
            wait(result)

    return run


def warmed(fn: Callable[[], Any]) -> None:
    """Call until what recurs is compiled, as far as there is time."""
    most, seconds = WARM
    start = time.process_time()
    for number in range(most):
        result = fn()
        if number > 1 and time.process_time() - start > seconds:
            break
    wait(result)


def compared(name: str, elements: int) -> dict[str, float] | None:
    """Return the seconds of a call: "cpu", "eager", "jit" (where it compiles); None where it is not timed."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    torch.manual_seed(0)
    call = found(op, elements)
    if call is None:
        return None
    args, kwargs = call
    start = time.perf_counter()
    op(*args, **kwargs)
    once = time.perf_counter() - start
    if once > LONGEST:
        return None
    device = tg.device("jax")
    on_args = tuple(moved(a, device) for a in args)
    on_kwargs = {n: moved(a, device) for n, a in kwargs.items()}
    if "device" in {a.name for a in op._schema.arguments}:
        on_kwargs["device"] = device
    tensors = [a for a in on_args if isinstance(a, Tensor)]
    compiled = tg.jit(lambda *given: op(*_with(on_args, given), **on_kwargs))
    subjects: dict[str, Callable[[], Any]] = {
        "cpu": lambda: op(*args, **kwargs),
        "eager": lambda: op(*on_args, **on_kwargs),
        "jit": lambda: compiled(*tensors),
    }
    for one in ("eager", "jit"):
        try:
            warmed(subjects[one])
        except Exception as error:
            print(f"{name}, {one}: {str(error).splitlines()[:1] or error!r}", file=sys.stderr)
            del subjects[one]
    calls = max(1, min(20, int(2e-3 / max(once, 1e-6))))
    bursts = interleaved({n: burst(fn, calls, n != "cpu") for n, fn in subjects.items()}, 1, 3, time.process_time)
    return {n: seconds / calls for n, seconds in bursts.items()}


def _with(args: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> list[Any]:
    """The arguments with other tensors."""
    rest = iter(tensors)
    return [next(rest) if isinstance(a, Tensor) else a for a in args]


def reason(name: str) -> str:
    packet = name.partition(".")[0]
    if packet.startswith("_foreach_"):
        return "a call with many tensors"
    return next((why for why, names in REASONS.items() if packet in names.split()), "open")


def beyond(name: str, elements: int, seconds: dict[str, float]) -> Iterator[Row]:
    """The rows of an operator that takes more than `LIMIT` times as long as on the CPU, calls left aside."""
    for how in ("eager", "jit"):
        ours, native = seconds.get(how, 0), seconds["cpu"]
        if ours > LIMIT * native and ours - native > A_CALL:
            yield Row(f"{name}, {elements} elements, {how}: {reason(name)}", ours, native, "CPU PyTorch")


def measure(names: list[str] | None = None, sizes: tuple[int, ...] = SIZES) -> Iterator[Row]:
    timed = slow = 0
    for name in names or list(tg.torch.operators()):
        if name.startswith(LEFT_OUT):
            continue
        for elements in sizes:
            seconds = compared(name, elements)
            if seconds is None:
                break
            timed += 1
            rows = list(beyond(name, elements, seconds))
            slow += bool(rows)
            yield from rows
    yield Row(f"calls of operators beyond {LIMIT} times CPU PyTorch", slow, timed, "calls that were timed", unit="")
