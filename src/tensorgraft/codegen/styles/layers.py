"""Tables of layers: {word: a function that returns the equivalent class of the target for a call of the word, or
None}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgraft.codegen.structure.functions import Layer
from tensorgraft.codegen.trace import Var
from tensorgraft.hub import dtypes

Values = dict[str, Any]


def layer(callee: str, *args: Any, **kwargs: tuple[Any, Any]) -> Layer:
    """Return a layer with these positional arguments, and keywords given as (value, default)."""
    arguments = {str(i): a for i, a in enumerate(args)} | {k: v for k, (v, _) in kwargs.items()}
    return Layer(callee, arguments, {k: d for k, (_, d) in kwargs.items()})


def _float32(*arrays: Any) -> bool:
    return all(not isinstance(v, Var) or v.dtype == dtypes.float32 for v in arrays)


def paired(padding: Any) -> Any:
    """Return one number for each axis of a padding that is the same at both ends; None if it is not."""
    return tuple(low for low, _ in padding) if all(low == high for low, high in padding) else None


# ---- PyTorch -----------------------------------------------------------------------------------------------------


def _linear(v: Values) -> Layer | None:
    w = v["weight"]
    if not isinstance(w, Var) or w.ndim != 2 or not _float32(w):
        return None
    return layer("nn.Linear", w.shape[1], w.shape[0], bias=(v["bias"] is not None, True))


def _conv(v: Values) -> Layer | None:
    w, padding = v["weight"], paired(v["padding"])
    n = w.ndim - 2
    if not 1 <= n <= 3 or padding is None or not _float32(w):
        return None
    return layer(
        f"nn.Conv{n}d", w.shape[1] * v["groups"], w.shape[0], tuple(w.shape[2:]), stride=(v["stride"], (1,) * n),
        padding=(padding, (0,) * n), dilation=(v["dilation"], (1,) * n), groups=(v["groups"], 1),
        bias=(v["bias"] is not None, True),
    )  # fmt: skip


def _conv_transpose(v: Values) -> Layer | None:
    w = v["weight"]
    n = w.ndim - 2
    if not 1 <= n <= 3 or not _float32(w):
        return None
    return layer(
        f"nn.ConvTranspose{n}d", w.shape[0], w.shape[1] * v["groups"], tuple(w.shape[2:]),
        stride=(v["stride"], (1,) * n), padding=(v["padding"], (0,) * n),
        output_padding=(v["output_padding"], (0,) * n), groups=(v["groups"], 1), bias=(v["bias"] is not None, True),
        dilation=(v["dilation"], (1,) * n),
    )  # fmt: skip


def _of_last_axes(callee: str, eps: float | None) -> Callable[[Values], Layer | None]:
    def rule(v: Values) -> Layer | None:
        if v["weight"] is None or not _float32(v["weight"]):
            return None
        options = {"bias": (v["bias"] is not None, True)} if "bias" in v else {}
        return layer(callee, tuple(v["weight"].shape), eps=(v["eps"], eps), **options)

    return rule


def _group_norm(v: Values) -> Layer | None:
    if v["weight"] is None or v["bias"] is None or not _float32(v["weight"]):
        return None
    return layer("nn.GroupNorm", v["groups"], v["weight"].shape[0], eps=(v["eps"], 1e-5))


def _batch_norm(v: Values) -> Layer | None:
    n = v["x"].ndim - 2
    if (
        any(v[k] is None for k in ("mean", "variance", "weight", "bias"))
        or n not in (0, 1, 2, 3)
        or not _float32(v["x"])
    ):
        return None
    momentum = {"momentum": (v["momentum"], 0.1)} if "momentum" in v else {}
    return layer(f"nn.BatchNorm{max(n, 1)}d", v["weight"].shape[0], eps=(v["eps"], 1e-5), **momentum)


def _embedding(v: Values) -> Layer | None:
    w = v["weight"]
    if not isinstance(w, Var) or not _float32(w):
        return None
    return layer("nn.Embedding", *w.shape, padding_idx=(v.get("padding"), None))


def _plain(callee: str, **keywords: tuple[str, Any]) -> Callable[[Values], Layer | None]:
    return lambda v: layer(callee, **{k: (v[name], default) for k, (name, default) in keywords.items()})


def _pool(kind: str) -> Callable[[Values], Layer | None]:
    def rule(v: Values) -> Layer | None:
        n, padding = len(v["window"]), paired(v["padding"])
        if not 1 <= n <= 3 or padding is None or v["x"].ndim != n + 2:
            return None
        options: dict[str, Any] = {}
        if kind == "Max":
            options["dilation"] = (v["dilation"] or (1,) * n, (1,) * n)
        else:
            options["count_include_pad"] = (v["count_padding"], True)
        return layer(
            f"nn.{kind}Pool{n}d", v["window"], stride=(v["stride"], v["window"]), padding=(padding, (0,) * n), **options
        )

    return rule


def _gelu(v: Values) -> Layer | None:
    return layer("nn.GELU", approximate=("tanh" if v["approximate"] else "none", "none"))


def _flatten(v: Values) -> Layer | None:
    n = v["x"].ndim
    end = v["end"] - n if v["end"] >= 0 else v["end"]
    return layer("nn.Flatten", start_dim=(v["start"] % n, 1), end_dim=(end, -1))


def _softmax(v: Values) -> Layer | None:
    axis = v["axis"]
    return layer("nn.Softmax", dim=(axis, None)) if isinstance(axis, int) else None


TORCH: dict[str, Callable[[Values], Layer | None]] = {
    "linear": _linear,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "layer_norm": _of_last_axes("nn.LayerNorm", 1e-5),
    "rms_norm": _of_last_axes("nn.RMSNorm", None),
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "batch_norm_training": _batch_norm,
    "embedding": _embedding,
    "dropout": lambda v: layer("nn.Dropout", v["rate"]),
    "relu": _plain("nn.ReLU"),
    "relu6": _plain("nn.ReLU6"),
    "silu": _plain("nn.SiLU"),
    "tanh": _plain("nn.Tanh"),
    "sigmoid": _plain("nn.Sigmoid"),
    "mish": _plain("nn.Mish"),
    "selu": _plain("nn.SELU"),
    "softplus": _plain("nn.Softplus"),
    "log_sigmoid": _plain("nn.LogSigmoid"),
    "hard_silu": _plain("nn.Hardswish"),
    "hard_sigmoid": _plain("nn.Hardsigmoid"),
    "leaky_relu": _plain("nn.LeakyReLU", negative_slope=("slope", 0.01)),
    "elu": _plain("nn.ELU", alpha=("alpha", 1.0)),
    "gelu": _gelu,
    "softmax": _softmax,
    "flatten": _flatten,
    "max_pool": _pool("Max"),
    "avg_pool": _pool("Avg"),
}


__all__ = ["TORCH", "Values", "layer", "paired"]
