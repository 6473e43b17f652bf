"""Calibration: measurements of what a model's weights are multiplied by, for fixed ranges of activations, and for GPTQ.

A model has to support two things: replacing a weight by another array, and running. See `recorded_weight.py`.

Built on the backend with quantised arrays, and used for models; no core module imports it.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization import policy
from tensorgraft.quantization.encode import encode
from tensorgraft.quantization.input_ranges import InputRange
from tensorgraft.quantization.observers import percentile_of
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.recorded_weight import Product, watched_weight
from tensorgraft.quantization.rounding import Moments, check_damping, rounded
from tensorgraft.quantization.scheme import Scheme


@dataclass(frozen=True)
class Weight:
    """A weight that is to be quantised: an array of a backend."""

    xp: Backend
    array: Array
    scheme: Scheme


@dataclass(frozen=True)
class Stage:
    """A model that is being measured."""

    # the model with quantised arrays in the places of weights, by their names, and the others as they were
    show: Callable[[Mapping[str, Quantized]], Any]
    # context in which the model runs as for inference, not for training; its mode is restored afterwards
    running: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


@dataclass(frozen=True)
class Method:
    """The method by which the weights of a model are quantised: the arguments of `tg.quantize_`."""

    observer: str = "minmax"
    calibrate: Any = None
    activation_observer: str = "minmax"
    rounding: str = "nearest"
    damping: float = 0.01

    def __post_init__(self) -> None:
        percentile_of(self.observer)
        percentile_of(self.activation_observer, "activation_observer")
        if self.rounding not in ("nearest", "gptq"):
            raise ValueError(f"quantize_: expected rounding 'nearest' or 'gptq', got {self.rounding!r}")
        check_damping("quantize_", self.damping)
        c = self.calibrate
        if c is not None and not callable(c) and (isinstance(c, str | Mapping) or not isinstance(c, Iterable)):
            raise TypeError(
                "quantize_: expected calibrate to be a list (or any iterable) of batches, or a function that"
                f" takes the model and runs it, got a {type(c).__qualname__}"
            )

    def quantized(self, weights: Mapping[str, Weight], stage: Stage) -> dict[str, Quantized]:
        """Return all weights, quantised on their backends. The stage is left with whatever it showed last."""
        rounded = {name: self._nearest(name, w) for name, w in weights.items()}
        asking = [name for name, w in weights.items() if w.scheme.is_static or self.rounding == "gptq"]
        if not asking and self.calibrate is not None:
            raise ValueError(
                f"quantize_: calibrate is given, but nothing is measured: {_schemes(weights)} with"
                f" rounding={self.rounding!r} need no inputs, unlike int8_static and rounding='gptq'"
            )
        if not asking:
            return rounded
        if self.calibrate is None:
            name = asking[0]
            method = "rounding='gptq'" if self.rounding == "gptq" else str(weights[name].scheme)
            raise ValueError(
                f"quantize_: {name}: {method} measures activations: pass calibrate=, a list of inputs of the model"
                " (tensors, or tuples or dictionaries of its arguments)"
            )
        run = _Run(self, weights, stage)
        return rounded | (run.gptq(asking) if self.rounding == "gptq" else run.ranges(asking, rounded))

    def _nearest(self, name: str, w: Weight) -> Quantized:
        try:
            with w.xp.scope():
                return encode(w.xp, w.array, w.scheme, observer=self.observer)
        except (ValueError, TypeError) as error:
            raise type(error)(f"quantize_: {name}: {error}") from None


class _Run:
    def __init__(self, method: Method, weights: Mapping[str, Weight], stage: Stage) -> None:
        self.method, self.weights, self.stage = method, weights, stage
        calibrate = method.calibrate
        self.batches = (
            calibrate if callable(calibrate) else [calibrate] if hasattr(calibrate, "shape") else list(calibrate)
        )
        if not callable(calibrate) and not self.batches:
            raise ValueError(
                "quantize_: calibrate has no batches: pass inputs of the model, or a function that runs it"
            )

    def ranges(self, names: Iterable[str], weights: Mapping[str, Quantized]) -> dict[str, Quantized]:
        """Return fixed ranges of the inputs of weights, measured in the unquantised model."""
        watches = {name: self._watch(name) for name in names}
        self._measure({}, watches)
        return {name: self._with_range(weights[name], watch) for name, watch in watches.items()}

    def gptq(self, names: Iterable[str]) -> dict[str, Quantized]:
        """Quantise the weights one after the other, in the order in which the model uses them, by their inputs when the
        weights before are quantised. Weights with the same input are quantised together."""
        first = {name: self._watch(name, _Digest()) for name in names}
        order = self._measure({}, first)
        rounded: dict[str, Quantized] = {}
        while order:
            name = order[0]
            group = [n for n in order if first[n].sink.value == first[name].sink.value]
            leader = self._watch(name, Moments(self.weights[name].array.shape))
            self._measure(rounded, {name: leader})
            for n in group:
                rounded[n] = self._with_range(self._rounded(n, leader.sink), leader)
            order = [n for n in order if n not in group]
        return rounded

    def _watch(self, name: str, sink: Any = None) -> _Watch:
        scheme = self.weights[name].scheme
        asymmetric = scheme.activation == "int8_static_asymmetric"
        observed = InputRange(self.method.activation_observer, asymmetric) if scheme.is_static else None
        return _Watch(name, observed, sink)

    def _measure(self, watched: Mapping[str, Quantized], watches: Mapping[str, _Watch]) -> list[str]:
        """Run all batches. Returns the names of the observed weights in the order of their first use."""
        order: list[str] = []
        relays, watching = [], {}
        for name, watch in watches.items():
            weight, relay = self.weights[name], _Relay(watch, order)
            relays.append(relay)
            with weight.xp.scope():
                watching[name] = watched_weight(weight.xp, weight.array, relay)
        model = self.stage.show({**watched, **watching})
        runs = [("", self.batches)] if callable(self.batches) else enumerate(self.batches)
        try:
            for n, batch in runs:
                with self.stage.running(), policy.allowed():
                    batch(model) if callable(self.batches) else _call_model(model, batch)
                for xp in {weight.xp for weight in self.weights.values()}:
                    xp.synchronize()
                for watch in watches.values():
                    if watch.fault:
                        raise ValueError(f"quantize_: calibrate: {f'batch {n}: ' if n != '' else ''}{watch.fault}")
        finally:
            for relay in relays:
                relay.watch = None
        if missing := [name for name, watch in watches.items() if not watch.count]:
            raise ValueError(
                f"quantize_: calibrate: no input reached {', '.join(missing)} in"
                f" {'the run' if callable(self.batches) else f'{len(self.batches)} batches'}: pass batches that"
                f" reach it, or exclude it by a pattern, {{{missing[0].removesuffix('.weight')!r}: None, '*':"
                " ...}"
            )
        return order

    def _rounded(self, name: str, moments: Moments) -> Quantized:
        w, method = self.weights[name], self.method
        try:
            with w.xp.scope():
                q = rounded(w.xp.to_numpy(w.array), moments, w.scheme, method.damping, method.observer)
                # the part for the range of inputs is None yet: it is measured later
                return q.with_parts([None if part is None else w.xp.asarray(part) for part in q.parts])
        except ValueError as error:
            raise ValueError(f"quantize_: {name}: {error}") from None

    def _with_range(self, q: Quantized, watch: _Watch) -> Quantized:
        if watch.range is None:
            return q
        xp = self.weights[watch.name].xp
        with xp.scope():
            scale, zero = (None if x is None else xp.asarray(x) for x in watch.range.scale_and_zero())
        return replace(q, input_scale=scale, input_zero=zero)


class _Watch:
    """An observer of the products of a weight, which records the range of their inputs and any other use. Errors are
    reported after the run, since a model may catch exceptions inside of it."""

    def __init__(self, name: str, observed: InputRange | None, sink: Any) -> None:
        self.name, self.range, self.sink = name, observed, sink
        self.count = 0
        self.fault = ""

    def note(self, product: Product) -> None:
        if not np.isfinite(product.inputs).all():
            self.fault = self.fault or (
                f"what multiplies {self.name}, of shape {product.inputs.shape}, has NaN or infinite values: find where"
                " they come from, or replace them (nan_to_num)"
            )
            return
        self.count += 1
        if self.range is not None:
            self.range.update(product.inputs)
        if self.sink is not None:
            problem = self.sink.update(product)
            self.fault = self.fault or (f"{self.name}: {problem}" if problem else "")


class _Relay:
    """A `Watch` for as long as a model runs: compiled programs may be kept, and with them whom they tell."""

    def __init__(self, watch: _Watch, order: list[str]) -> None:
        self.watch: _Watch | None = watch
        self.order = order
        self.lock = threading.Lock()

    def reached(self) -> None:
        if self.watch is not None and self.watch.name not in self.order:
            self.order.append(self.watch.name)

    def note(self, product: Product) -> None:
        with self.lock:
            if self.watch is not None:
                self.watch.note(product)

    def unseen(self, why: str) -> None:
        if self.watch is not None:
            self.watch.fault = (
                f"the product with {self.watch.name} is not seen: {why}. Give the model as it is before tg.jit, tg.lazy"
                " or a transform"
            )


class _Digest:
    """Tells whether weights are multiplied by the same, in whatever order."""

    def __init__(self) -> None:
        self.value = 0

    def update(self, product: Product) -> None:
        columns = None if product.columns is None else product.columns.tobytes()
        digest = hashlib.blake2b(repr((product.inputs.shape, product.axis, columns)).encode())
        digest.update(np.ascontiguousarray(product.inputs).data)
        self.value += int.from_bytes(digest.digest(), "big")


def _call_model(model: Callable[..., Any], batch: Any) -> None:
    if not callable(model):
        raise TypeError(
            f"quantize_: calibrate: a {type(model).__qualname__} cannot be called with batches: pass a function"
            " that takes the model and runs it"
        )
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, tuple | list):
        model(*batch)
    else:
        model(batch)


def _schemes(weights: Mapping[str, Weight]) -> str:
    return ", ".join(dict.fromkeys(str(w.scheme) for w in weights.values()))


__all__ = ["Method", "Stage", "Weight"]


def nothing_fits(names: list[str], name: str = "quantize_") -> ValueError:
    text = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return ValueError(f"{name}: no weight fits the filter and the patterns of the schemes; there are {text or 'none'}")
