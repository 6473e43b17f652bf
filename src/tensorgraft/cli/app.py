"""The subcommands and their options. What they do is imported when they run: `--help` stays fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="tensorgraft",
    help="Run a PyTorch or TensorFlow program, unchanged, on another tensor framework.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from tensorgraft import __version__

        typer.echo(f"tensorgraft {__version__}")
        raise typer.Exit()


@app.callback()
def command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run a PyTorch or TensorFlow program, unchanged, on another tensor framework."""


# ---- options of `run` ------------------------------------------------------------------------------------------------

Script = Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.")]
OnBackend = Annotated[str, typer.Option("--on", metavar="BACKEND", help="Such as jax, numpy or jax:gpu:0.")]
IsModule = Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as in `python -m`.")]
Lazy = Annotated[
    bool, typer.Option("--lazy", help="Record operations; compile and run them together where a value is asked for.")
]
Eager = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="tiered (the default): compute at once what is met for the first times; compiled: compile it.",
        show_default=False,
    ),
]
Processes = Annotated[
    int,
    typer.Option(min=1, help="Start so many processes of the script, as torchrun does; with --coordinator, there are."),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="This is one of --processes on several machines, which meet there.",
        show_default=False,
    ),
]
ProcessId = Annotated[
    int | None,
    typer.Option(min=0, help="Of this process, with --coordinator; HOST is the machine of 0.", show_default=False),
]
Devices = Annotated[
    int | None,
    typer.Option(min=1, help="Without an accelerator: the CPU counts as so many devices.", show_default=False),
]
JitReport = Annotated[bool, typer.Option("--jit-report", help="Say at the end what was compiled.")]
StrictFallbacks = Annotated[
    bool, typer.Option("--strict-fallbacks", help="What would not be computed by BACKEND is an error.")
]
CompileCache = Annotated[
    bool | None,
    typer.Option(
        "--compile-cache/--no-compile-cache",
        help="Keep compiled programs for later runs, which is the default, or do not.",
        show_default=False,
    ),
]


# What follows the script's name belongs to the script, options included: as `python script.py --steps 5`.
@app.command(context_settings={"allow_interspersed_args": False})
def run(
    program: Script,
    on: OnBackend = "jax",
    module: IsModule = False,
    lazy: Lazy = False,
    eager: Eager = None,
    processes: Processes = 1,
    coordinator: Coordinator = None,
    process_id: ProcessId = None,
    devices: Devices = None,
    jit_report: JitReport = False,
    strict_fallbacks: StrictFallbacks = False,
    compile_cache: CompileCache = None,
) -> None:
    """Run a script of PyTorch, which gets BACKEND where it asks for an accelerator or for CUDA, or one of TensorFlow,
    whose functions BACKEND computes."""
    from tensorgraft.cli.script import refusal

    if (status := refusal(program, module)) is not None:  # before anything slow
        raise typer.Exit(status)
    if coordinator is not None or process_id is not None:
        from tensorgraft.cli.processes import join

        if (wrong := join(coordinator, process_id, processes)) is not None:
            raise typer.BadParameter(wrong)
    elif processes > 1:
        from tensorgraft.cli.processes import launch

        flags = {"-m": module, "--lazy": lazy, "--jit-report": jit_report, "--strict-fallbacks": strict_fallbacks}
        flags |= {"--compile-cache": compile_cache is True, "--no-compile-cache": compile_cache is False}
        options = ["--on", on, *(name for name, said in flags.items() if said)]
        options += ["--devices", str(devices)] if devices else []
        options += ["--eager", eager] if eager else []
        raise typer.Exit(launch(processes, [*options, *program]))
    from tensorgraft.cli.run import run_program

    raise typer.Exit(
        run_program(
            program,
            on=on,
            module=module,
            lazy=lazy,
            eager=eager,
            jit_report=jit_report,
            strict_fallbacks=strict_fallbacks,
            compile_cache=compile_cache,
            devices=devices,
        )
    )


@app.command()
def convert(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="module:Model or file.py:Model.")],
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="jax, torch, tensorflow, numpy or array_api.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.py", help="Beside it FILE.safetensors is written.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="[NAME=]SHAPE[:DTYPE]",
            help="An argument, such as 2x3x32x32 or ids=2x8:int64<99; several times. Without any, those of"
            " example_inputs() beside PROGRAM.",
        ),
    ] = None,
    style: Annotated[
        str | None, typer.Option(metavar="STYLE", help="How parameters are held.", show_default=False)
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE.safetensors", help="What the model is loaded with before.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="The model in training mode, not in evaluation.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Write a test beside FILE.py, too.")] = False,
) -> None:
    """Write a program down as readable source of another framework, with its weights, and say how far they differ."""
    from tensorgraft.cli.convert import convert as run_convert

    raise typer.Exit(
        run_convert(
            program,
            to=to,
            out=str(out),
            inputs=inputs or [],
            style=style,
            weights=None if weights is None else str(weights),
            training=train,
            check_file=check,
        )
    )


@app.command(context_settings={"allow_interspersed_args": True})
def compare(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="script.py, or module:function or file.py:function.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's arguments.")] = None,
    on: Annotated[
        list[str] | None,
        typer.Option("--on", metavar="BACKEND", help="Several times; `native` is the program's own framework."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Calls that are timed, after the first.")] = 10,
    tolerance: Annotated[float, typer.Option(help="Largest difference, relative to an array's largest value.")] = 1e-4,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the figures; - for standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the times.")] = None,
) -> None:
    """Run a program on several backends, side by side: results, gradients, time and memory.

    FUNCTION is called with a device and returns (step, args): step(*args) is what is compared and timed.
    """
    from tensorgraft.cli.compare import compare as run_compare

    chosen = on or ["native" if program.endswith(".py") else "pytorch", "jax", "numpy"]
    raise typer.Exit(
        run_compare(program, arguments or [], chosen, repeat=repeat, tolerance=tolerance, out=json, plot=plot)
    )


@app.command()
def bench(
    operation: Annotated[str, typer.Argument(help="A function of the Array API, such as matmul or exp.")],
    shape: Annotated[str, typer.Option(help="Of the operands; of matmul rows,inner,columns.")] = "512,512,512",
    on: Annotated[list[str] | None, typer.Option("--on", metavar="BACKEND", help="Several times.")] = None,
    dtype: Annotated[str, typer.Option(help="Of the operands.")] = "float32",
    repeat: Annotated[int, typer.Option(min=2, help="Bursts that are timed.")] = 10,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the figures; - for standard output.")] = None,
) -> None:
    """Time one operation on several backends, eagerly and compiled."""
    from tensorgraft.cli.bench import bench as run_bench
    from tensorgraft.hub import registry

    try:
        extents = [int(n) for n in shape.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--shape {shape!r}: expected integers separated by commas, such as 512,512") from None
    raise typer.Exit(run_bench(operation, extents, on or registry.backends(), dtype, repeat, json))


@app.command()
def doctor(
    devices: Annotated[bool, typer.Option("--devices", help="Start every backend, and list its devices.")] = False,
    drift: Annotated[
        bool,
        typer.Option("--drift", help="Instead, what frameworks have that differs from the versions that were tested."),
    ] = False,
) -> None:
    """List backends and front ends: versions, and the command that installs what is missing."""
    if drift:
        from tensorgraft.cli.drift import print_drift

        raise typer.Exit(print_drift())
    from tensorgraft.cli.doctor import print_report

    print_report(devices)


def main() -> None:
    app()
