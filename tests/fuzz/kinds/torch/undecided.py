"""Differences that say nothing: rounding decides the result, or the source framework leaves it open.

A program is played again on the CPU, with noise of the size of rounding on what each operator takes and gives. What
then differs as much as it does on the device is decided by rounding. The same pass looks for what is unspecified.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from tests.fuzz.kinds.torch import data, observed
from tests.fuzz.kinds.torch.left_open import STEP, extent_of
from tests.fuzz.kinds.torch.noise import Noise, Zeros
from tests.fuzz.kinds.torch.whole import TRANSFORMS, WAYS, raised
from tests.fuzz.program import REFERENCE, Outcome, Program

import torch
from tensorgraft.frontends.torch.dispatch.refusals import ELSEWHERE

Tensor = torch.Tensor
RUNS = 6
_COMPOSED = r"(?:matrix_rank|matmul|kron)\b.*out=(\w+)"  # operators made of others, with an `out=`


def _begun_elsewhere(kind: Any, program: Program, judge: str, noise: Noise) -> Outcome:
    """Below `torch.func` PyTorch can crash in a mode that computes: the numbers that programs begin with are noisy."""
    data.moved = noise.noisy
    try:
        outcome: Outcome = kind.play(program, judge)
    finally:
        data.moved = data.same
    return outcome


def reason(kind: Any, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
    judge = kind.reference(subject)
    whole_way = subject.partition(" ")[2] in TRANSFORMS
    if _grows(kind, program):
        return "a tensor that grows beyond its storage, which others see"
    if any(
        line.endswith("requires_grad False, the CPU: True")
        and not _differentiable(expected.observed[name].exact["dtype"])
        for name, line in observed.unequal(expected.observed, found.observed)
    ):
        return "integers that require a gradient"
    documented = _documented(kind, program, subject, expected, found)
    if documented:
        return documented
    names = {name for name, _ in observed.unequal(expected.observed, found.observed)}
    read = [_as_other_numbers(expected.observed.get(n), found.observed.get(n)) for n in names]
    if names and all(read) and re.search(r"view\(torch|view(_copy)?\.dtype", str(program)):
        return "the bits of NaN" if "the bits of NaN" in read else "rounding, read as other numbers"
    others = []
    for seed in (None, *range(RUNS)):
        with Noise(seed) as noise:
            outcome = kind.play(program, REFERENCE if whole_way else judge)
        if noise.open:
            return noise.open
        if seed is None:
            continue
        others.append(_begun_elsewhere(kind, program, judge, noise) if whole_way else outcome)
    if whole_way:
        with Zeros():
            if not kind.differences(kind.play(program, judge), found, program):
                return "a tangent that is nothing, times NaN or infinity"
    if expected.raised != found.raised:
        first = min(i for i in {*expected.raised, *found.raised} if expected.raised.get(i) != found.raised.get(i))
        lacking = expected.raised.get(first) == "NotImplementedError" and first not in found.raised
        if lacking and re.search("float16|float8|" + "|".join(ELSEWHERE), str(program)):
            return "a dtype for which the CPU has no kernel, and CUDA has one"
        if first not in found.raised and judge == REFERENCE and not kind.kept(_raised(kind, program, first)):
            return "what this machine's CPU lacks"
        differs = any(o.raised.get(first) != expected.raised.get(first) for o in others)
        return "rounding decides whether an error is raised" if differs else None
    for name, line in observed.unequal(expected.observed, found.observed):
        if not _varies(name, line, expected, found, others):
            return None
    return "rounding decides"


def _documented(kind: Any, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
    """Rows of docs/differences.md."""
    fused = re.search(r"linear\(|rms_norm|RMSNorm|Transformer|Linear", str(program))
    if fused and "inference_mode" in str(program):
        at = min((i for i in found.raised if i not in expected.raised), default=None)
        saved = at is not None and "cannot be saved for backward" in str(_raised(kind, program, at, subject))
        if saved and all(found.raised.get(i) == e for i, e in expected.raised.items() if i < at):
            return "documented: one operator on the device keeps a tensor that was made in inference mode"
    if re.search(r"nn\.(RNN|GRU|LSTM)\(", str(program)) and "register_hook" in str(program):
        at = min((i for i, error in found.raised.items() if expected.raised.get(i) != error), default=None)
        if at is not None and "NoneType" in str(_raised(kind, program, at, subject)):
            return "documented: a hook of a result of a recurrent layer is called without a gradient"
    lines = [line for _, line in observed.unequal(expected.observed, found.observed)]
    outs = {i: of[1] for i, text in enumerate(program.statements) if (of := re.search(_COMPOSED, text))}
    failed = {out for i, out in outs.items() if i in expected.raised and expected.raised[i] == found.raised.get(i)}
    unwritten = [f"{out}: values " for out in failed]
    if lines and outs and all(": version " in line or line.startswith(tuple(unwritten)) for line in lines):
        return "documented: an out= that is resized has counted one write more"
    if lines and all(": strides " in line for line in lines) and re.search("ldexp|logaddexp2|xlog1py", str(program)):
        return "documented: strides of an elementwise operator of several dtypes"
    # or the history cannot be asked for at all, on one of the two
    said = "(requires_grad|is_leaf) (True|False), the CPU|: [a-z ]+ None, the CPU"
    flags = all(re.search(said, line) for line in lines)
    if not (lines and flags) or expected.raised != found.raised:
        return None
    if re.search(r"F\.linear\(T\(\(\d+, \d+, \d+\)", str(program)) and ".requires_grad_()" in str(program):
        return "documented: F.linear gives no view"
    if "inference_mode" in str(program) and re.search("clone|repeat", str(program)):
        return "documented: a copy of a tensor that was made in inference mode is no view"
    if re.search("RMSNorm|rms_norm", str(program)) and "create_graph=True" in str(program):
        return "documented: the gradient of RMSNorm's weight can be differentiated"
    return None


def _raised(kind: Any, program: Program, at: int, subject: str = REFERENCE) -> Exception:
    """What the CPU raises in a statement, or a subject."""
    backend, _, way = subject.partition(" ")
    if way in WAYS:
        return raised(kind, program, backend, way)
    names = kind.names(subject)
    for text in program.statements[:at]:
        with contextlib.suppress(Exception):
            exec(text, names)
    try:
        exec(program.statements[at], names)
    except Exception as error:
        return error
    raise AssertionError("it raises in one run, and not in another")


def _differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _grows(kind: Any, program: Program) -> bool:
    """A tensor has become larger than all that several tensors saw of their storage: beyond it on the device, where
    storages are as large as the first of their tensors."""
    names = kind.names(REFERENCE)
    for text in program.statements:
        before = _storages(names)
        with contextlib.suppress(Exception):
            exec(text, names)
        after = _storages(names)
        if any(after.get(at, (0, 0))[0] > size and seen > 1 for at, (size, seen) in before.items()):
            return True
    return False


def _as_other_numbers(want: Any, got: Any) -> str | None:
    """Seen as floats of another dtype, which a program has written there, they are equal to rounding."""
    if want is None or got is None or want.exact != got.exact:
        return None
    own = want.values.real if want.values.is_complex() else want.values
    bits = [s.values.contiguous().flatten().view(torch.uint8) for s in (want, got)]
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        if dtype != own.dtype and not len(bits[0]) % dtype.itemsize:
            a, b = (x.view(dtype) for x in bits)
            if torch.equal(a.isnan(), b.isnan()) and torch.allclose(a, b, rtol=2 * STEP[dtype], atol=0, equal_nan=True):
                return "the bits of NaN" if a.isnan().any() else "rounding"
    return None


def _storages(names: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """storage -> how many bytes the program's tensors span of it, and how many of these see it."""
    storages: dict[int, tuple[int, int]] = {}
    for name, value in names.items():
        if name[0] == "v" and name[1:].isdigit():
            for _, t in observed.leaves(name, value):
                at = t.untyped_storage()._cdata
                span, seen = storages.get(at, (0, 0))
                storages[at] = max(span, extent_of(t) * t.element_size()), seen + 1
    return storages


def _varies(name: str, line: str, expected: Outcome, found: Outcome, others: list[Outcome]) -> bool:
    want, got = expected.observed.get(name), found.observed.get(name)
    runs = [o.observed.get(name) for o in others]
    if want is None or got is None or ": values " not in line:
        aspect = next((key for key in want.exact if f"{name}: {key} " in line), None) if want is not None else None
        if aspect in ("dtype", "version", "requires_grad", "is_leaf", "inference"):  # the noise itself is a write
            return False
        return any(r is None or (aspect is not None and r.exact[aspect] != want.exact[aspect]) for r in runs)
    runs = [r for r in runs if r is not None and r.values.shape == want.values.shape]
    if want.values.dtype not in STEP:
        return any(not torch.equal(r.values, want.values) for r in runs)
    wide = torch.complex128 if want.values.is_complex() else torch.float64
    a, b = want.values.to(wide), got.values.to(wide)
    noisy = [r.values.to(wide) for r in runs]
    finite = torch.isfinite(a)
    wild = torch.zeros_like(finite)
    if noisy:  # by orders of magnitude: with other roundings it is at a pole
        sizes = torch.stack([n.abs() for n in (a, *noisy)])
        wild = (sizes.amax(0) > 1e6 * sizes.amin(0)) & ~torch.isfinite(b)
        if not a.is_complex():  # of a zero whose sign is open
            signs = torch.stack([n.sign() for n in (a, *noisy)])
            wild |= torch.isinf(a) & torch.isinf(b) & (signs.amin(0) != signs.amax(0))
    if not a.is_complex():  # one of them has just overflowed
        most = 0.99 * torch.finfo(want.values.dtype).max
        wild |= (finite != torch.isfinite(b)) & (torch.minimum(a.abs(), b.abs()) > most) & (a.sign() == b.sign())
    sure = ~wild
    unequal = not torch.equal(finite[sure], torch.isfinite(b)[sure])
    if unequal or not torch.allclose(a[~finite & sure], b[~finite & sure], equal_nan=True):
        return any(not torch.equal(of(n), of(a)) for n in noisy for of in (torch.isfinite, torch.isnan))
    finite &= sure
    if not finite.any() or not noisy:
        return False
    spread = torch.stack([(n - a).abs().nan_to_num(torch.inf, torch.inf, torch.inf) for n in noisy]).amax(0)
    rtol, atol = observed.TOLERANCES[want.values.dtype]
    allowed = 8 * spread.max() * 0.25 + 8 * spread + atol + rtol * a.abs()
    return bool(((b - a).abs() <= allowed)[finite].all())
