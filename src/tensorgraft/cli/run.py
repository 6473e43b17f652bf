"""`tensorgraft run`: runs a script with a backend in place of the accelerator, and prints reports at the end. For
TensorFlow see `functions`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorgraft.cli import functions
from tensorgraft.cli.script import execute
from tensorgraft.errors import BackendNotAvailableError, MissingNameError
from tensorgraft.hub import processes, registry, tiers
from tensorgraft.importing import is_ours, uncollected

if TYPE_CHECKING:
    from rich.console import Console

USAGE_ERROR = 2
CONTINUED = "TENSORGRAFT_RUN"  # in the environment of processes that the program starts: see `torch_entry.autoload`
_SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # "0": PyTorch imports no extensions
_MOST_ROWS = 20


def run_program(
    program: Sequence[str],
    *,
    on: str,
    module: bool = False,
    lazy: bool = False,
    eager: str | None = None,
    jit_report: bool = False,
    strict_fallbacks: bool = False,
    compile_cache: bool | None = None,
    devices: int | None = None,
) -> int:
    """Run `program` (a script or a module's name, then its arguments) on the backend `on`; returns the exit code."""
    try:
        registry.lookup(registry.parse(on)[0])
        if eager is not None:
            tiers.set_mode(eager)
            os.environ["TENSORGRAFT_EAGER"] = eager  # for processes that the program starts
    except (BackendNotAvailableError, ValueError) as error:
        _print_error(str(error))
        return USAGE_ERROR
    # Read by the PyTorch front end when it is first used, here and in processes that the program starts.
    os.environ["TENSORGRAFT_BACKEND"] = on
    if devices is not None:
        os.environ["TENSORGRAFT_DEVICES"] = str(devices)
    os.environ[processes.DETECT] = str(os.getpid())
    if strict_fallbacks:
        os.environ["TENSORGRAFT_FALLBACK"] = "error"
    if compile_cache is not None:
        os.environ["TENSORGRAFT_CACHE"] = "1" if compile_cache else "0"
    # JAX can hide its own frames in tracebacks, and adds a note about it. They are cut here, without such a note.
    os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
    os.environ.pop(CONTINUED, None)  # set by a program that started this one; messages are shown again
    imported = functions.imports(program, module)
    of_tensorflow = bool(functions.NAMES & imported)
    if of_tensorflow or "torch" not in imported:  # PyTorch's own writer of TensorBoard's files imports TensorFlow, too
        functions.switch_functions(on, strict_fallbacks)
    if of_tensorflow and "torch" not in imported:
        if lazy:
            _print_error("--lazy records operations of PyTorch: this script is one of TensorFlow")
            return USAGE_ERROR
        try:
            registry.get(on)
        except (RuntimeError, ValueError, MissingNameError) as error:
            _print_error(str(error))
            return USAGE_ERROR
        os.environ[CONTINUED] = on  # in case the program imports PyTorch later
        gc.freeze()
        return _executed(program, module, on, jit_report, of_tensorflow=True)
    try:
        with uncollected():
            _import_torch()
    except ModuleNotFoundError:
        _print_error('this runs PyTorch programs, and PyTorch is not installed: pip install "tensorgraft[torch]"')
        return USAGE_ERROR

    gc.freeze()  # objects that exist now live to the end, so garbage collections need not examine them
    if not _taken_over(on, at_once=lazy or ":" in on):  # so that an unknown device is an error before the program runs
        return USAGE_ERROR
    return _executed(program, module, on, jit_report, lazy)


def _taken_over(on: str, at_once: bool) -> bool:
    """Call `take_over`. If PyTorch's version is not supported, print the reason and return False."""
    os.environ[CONTINUED] = on
    try:
        take_over(on, at_once)
    except MissingNameError as error:
        _print_error(str(error))
        return False
    return True


def _import_torch() -> None:
    """Import PyTorch with tensorgraft as its device extension, even if others are installed."""
    points = importlib.metadata.entry_points(group="torch.backends")
    other_points = [point for point in points if not is_ours(point)]
    before = os.environ.get(_SWITCH)
    if not other_points or before == "0":
        import torch

        return
    os.environ[_SWITCH] = "0"
    try:
        import torch  # noqa: F401
    finally:
        del os.environ[_SWITCH]
        if before is not None:
            os.environ[_SWITCH] = before
    from tensorgraft.frontends.torch_entry import extensions, hooks, loading

    loading.set_front_end("tensorgraft.frontends.torch")
    hooks.register()
    extensions.warn_of_skipped(other_points)


def _executed(
    program: Sequence[str], module: bool, on: str, jit_report: bool, lazy: bool = False, of_tensorflow: bool = False
) -> int:
    """Run the program, and print the reports at its end."""
    with contextlib.ExitStack() as stack:
        recorded = None
        if lazy:
            import tensorgraft

            recorded = stack.enter_context(tensorgraft.lazy())
        status = execute(program, module)
        processes.failing = status != 0
    sys.stdout.flush()
    # not by `import`, which would import PyTorch for programs that do not use it
    loading = sys.modules.get("tensorgraft.frontends.torch_entry.loading")
    on_device = loading is not None and loading.loaded()
    if on_device:
        print_fallbacks(_console(), on)
    if functions.any_switched():
        functions.print_functions(_console(), on, jit_report)
    elif of_tensorflow and not on_device and not status:
        _console().print(f"the script called no function of TensorFlow: nothing was computed on {on}", highlight=False)
    if recorded is not None and jit_report:
        _console().print(
            f"recorded: {recorded.operations} operations, run as {recorded.programs} programs {recorded.runs} times;"
            f" computed at once, in pieces that did not come back often: {recorded.cold}",
            highlight=False,
        )
    if jit_report and on_device:
        print_tiers(_console())
    if jit_report and (on_device or not of_tensorflow):
        print_jit_report(_console())
    return status


def take_over(on: str, at_once: bool = False) -> None:
    """Let the backend `on` act as CUDA in this process, which has imported PyTorch, until it ends: from the first use
    of PyTorch, or `at_once`. In processes that the program starts, PyTorch's import calls this function."""
    from tensorgraft.frontends.torch_entry import loading
    from tensorgraft.frontends.torch_entry.unused import before_use, forget

    redirected = contextlib.ExitStack()
    redirected.callback(forget)
    # Undone last of all, so that functions that the program registers with `atexit` still find the accelerator.
    atexit.register(redirected.close)

    def redirect() -> None:
        from tensorgraft import jit
        from tensorgraft.frontends.torch.device.accelerator import as_accelerator

        redirected.enter_context(as_accelerator(on, jit))

    def load() -> None:
        loading.when_loaded(redirect)
        loading.load()

    load() if at_once else before_use(load)


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _print_error(reason: str) -> None:
    text = f"tensorgraft: {reason.removeprefix('tensorgraft: ')}"
    _console().print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def print_fallbacks(console: Console, on: str) -> None:
    """Print the operators that ran on the CPU, the most frequent first; nothing if there are none."""
    from tensorgraft.frontends.torch import fallbacks

    counts = fallbacks()
    if not counts:
        return
    from rich.table import Column, Table

    table = Table("operator", Column("calls", justify="right"))
    for name, calls in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(name, str(calls))
    console.print(f"operators that ran on the CPU, for want of a kernel on the device of {on}:", highlight=False)
    console.print(table)


def print_tiers(console: Console) -> None:
    """Print the numbers of calls of eager operators that were computed without a compiler, and of compiled ones."""
    from rich.table import Column, Table

    from tensorgraft.frontends.torch import copy_counts, tier_counts

    cold, hot = tier_counts()
    if not cold and not hot:
        return
    table = Table("eager operator", Column("calls computed cold", justify="right"), Column("plans", justify="right"))
    for name in sorted({*cold, *hot}, key=lambda name: (-hot[name], -cold[name], name))[:_MOST_ROWS]:
        table.add_row(name, str(cold[name]), str(hot[name]))
    console.print(
        f"eager: {cold.total()} calls computed at once, {hot.total()} plans made for the backend", highlight=False
    )
    if copies := copy_counts():
        directions = ", ".join(f"{n} {direction}" for direction, n in sorted(copies.items()))
        console.print(f"arrays copied: {directions}", highlight=False)
    console.print(table)


def print_jit_report(console: Console) -> None:
    """Print the compiled functions, how often they were compiled and how long that took."""
    from rich.markup import escape
    from rich.table import Column, Table

    from tensorgraft.transforms.jit import report

    right = [Column(name, justify="right") for name in ("programs", "compile time", "calls")]
    table = Table("compiled function", *right, Column("the last program, because", overflow="fold"))
    for entry in report():
        because = escape("; ".join(entry.reasons[-1])) if entry.reasons else ""
        calls = f"{entry.calls} ({entry.cold} uncompiled)" if getattr(entry, "cold", 0) else str(entry.calls)
        table.add_row(entry.name, str(entry.traces), f"{entry.compile_seconds:.2f} s", calls, because)
    if table.row_count:
        console.print(table)
    else:
        console.print("nothing was compiled: the program calls neither torch.compile nor tg.jit")
