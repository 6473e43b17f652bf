"""The subcommands and their options. Implementations are imported when they run, so `--help` is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="tensorgraft",
    help="Run a PyTorch or TensorFlow program on another tensor framework, without changes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        from tensorgraft import __version__

        typer.echo(f"tensorgraft {__version__}")
        raise typer.Exit()


@app.callback()
def command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run a PyTorch or TensorFlow program on another tensor framework, without changes."""


# ---- options of `run` ------------------------------------------------------------------------------------------------

Script = Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.")]
OnBackend = Annotated[
    str, typer.Option("--on", metavar="BACKEND", help="The backend, such as jax, numpy or jax:gpu:0.")
]
IsModule = Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as in `python -m`.")]
Lazy = Annotated[
    bool, typer.Option("--lazy", help="Record operations, and compile and run them together when a value is read.")
]
Eager = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="tiered (the default): run operations without a compiler at first; compiled: compile each of them.",
        show_default=False,
    ),
]
Processes = Annotated[
    int,
    typer.Option(min=1, help="The number of processes to start, as torchrun does; with --coordinator, their total."),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Join --processes on several machines, which connect to this address.",
        show_default=False,
    ),
]
ProcessId = Annotated[
    int | None,
    typer.Option(min=0, help="The number of this process, with --coordinator; 0 runs on HOST.", show_default=False),
]
Devices = Annotated[
    int | None,
    typer.Option(
        min=1, help="The number of devices that the CPU simulates, without an accelerator.", show_default=False
    ),
]
JitReport = Annotated[bool, typer.Option("--jit-report", help="Report the compiled programs at the end.")]
StrictFallbacks = Annotated[
    bool, typer.Option("--strict-fallbacks", help="Raise an error for operators that BACKEND cannot compute.")
]
CompileCache = Annotated[
    bool | None,
    typer.Option(
        "--compile-cache/--no-compile-cache",
        help="Cache compiled programs on disk for later runs (the default).",
        show_default=False,
    ),
]


# Arguments after the script's name belong to the script, including options, as in `python script.py --steps 5`.
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
    """Run a PyTorch script with BACKEND as its accelerator and CUDA device, or a TensorFlow script with its functions
    on BACKEND."""
    from tensorgraft.cli.script import refusal

    if (status := refusal(program, module)) is not None:  # before anything slow
        raise typer.Exit(status)
    if coordinator is not None or process_id is not None:
        from tensorgraft.cli.processes import join

        if (problem := join(coordinator, process_id, processes)) is not None:
            raise typer.BadParameter(problem)
    elif processes > 1:
        from tensorgraft.cli.processes import launch

        flags = {"-m": module, "--lazy": lazy, "--jit-report": jit_report, "--strict-fallbacks": strict_fallbacks}
        flags |= {"--compile-cache": compile_cache is True, "--no-compile-cache": compile_cache is False}
        options = ["--on", on, *(name for name, is_set in flags.items() if is_set)]
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


Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="SHAPE[:DTYPE]",
        help="An argument of both programs, such as 2x3x32x32 or 2x8:int64<99; may be repeated. The default is the"
        " result of example_inputs() in the module of the first program.",
    ),
]
TargetInputs = Annotated[
    list[str] | None,
    typer.Option(
        "--target-input", metavar="SHAPE[:DTYPE]", help="An argument of the second program, where it takes others."
    ),
]
IsTable = Annotated[bool, typer.Option("--table", help="Print every pair of values, with the lines of both programs.")]


@app.command()
def convert(
    program: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM", help="The model, as module:Model or file.py:Model, or a file .onnx, .pt2 or .stablehlo."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="A framework, for its source: jax, torch, tensorflow, numpy or array_api; or a format: stablehlo,"
            " onnx, saved_model, pt2 or litert.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="PATH", help="The file; weights of source are written to FILE.safetensors.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="[NAME=]SHAPE[:DTYPE]",
            help="An argument, such as 2x3x32x32 or ids=2x8:int64<99; may be repeated. The default is the result of"
            " example_inputs() in the module of PROGRAM.",
        ),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            metavar="STYLE", help="The structure of parameters, such as equinox, flax or keras.", show_default=False
        ),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE.safetensors", help="Weights to load into the model first.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Convert the model in training mode, not in evaluation mode.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Write a test next to FILE.py.")] = False,
) -> None:
    """Convert a program to readable source of another framework, with its weights, or to a file of another runtime, and
    report the differences."""
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


@app.command("run-model")
def run_model(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="An ONNX file, or the folder of a SavedModel.")],
    on: Annotated[
        str, typer.Option("--on", metavar="BACKEND", help="The backend: jax, torch, tensorflow or numpy.")
    ] = "jax",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="[NAME=]FILE.npy|SHAPE[:DTYPE]",
            help="An input: a file, or a shape of random numbers such as ids=2x8:int64<99; may be repeated.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.npz", help="Write the results.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of a model that draws random numbers.")] = None,
) -> None:
    """Run the model in a file on a backend, and print its results."""
    from tensorgraft.cli.run_model import run_model as run

    raise typer.Exit(run(path, on=on, inputs=inputs or [], out=out, seed=seed))


@app.command()
def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file .onnx, .pt2, .stablehlo or .tflite, or a SavedModel.")
    ],
) -> None:
    """List inputs, results, parameters and operators of a file, and what backends lack."""
    from tensorgraft.cli.convert import inspect_file

    raise typer.Exit(inspect_file(str(path)))


@app.command()
def port(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The network with weights: module:x or file.py:x.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The network that is to have them.")],
    inputs: Inputs = None,
    target_inputs: TargetInputs = None,
    hints: Annotated[
        list[str] | None,
        typer.Option("--hint", metavar="TARGET=SOURCE", help="Names of parameters to try first; may be repeated."),
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the mapping.")] = None,
    converter: Annotated[
        Path | None, typer.Option(metavar="FILE.py", help="Write a program that converts checkpoints with NumPy alone.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="IN", help="Convert this checkpoint of SOURCE: a file, or a folder of them.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="OUT.safetensors", help="The converted checkpoint.")] = None,
    table: IsTable = False,
) -> None:
    """Find which parameters of TARGET are which of SOURCE, and whether both compute the same."""
    from tensorgraft.cli.port import Outputs
    from tensorgraft.cli.port import port as run_port

    outputs = Outputs(save, converter, checkpoint, out)
    given = {"inputs": inputs or [], "target_inputs": target_inputs or [], "hints": hints or []}
    raise typer.Exit(run_port(source, target, **given, outputs=outputs, table=table))


@app.command("convert-weights")
def convert_weights(
    mapping: Annotated[Path, typer.Argument(metavar="MAPPING.json", help="What `port --save` wrote.")],
    checkpoint: Annotated[Path, typer.Argument(metavar="IN", help="A checkpoint: a file, or a folder of them.")],
    out: Annotated[Path, typer.Option("--out", metavar="OUT.safetensors", help="The converted checkpoint.")],
    shapes: Annotated[
        Path | None,
        typer.Option(
            metavar="SHAPES",
            help="For a mapping of smaller networks: the target's shapes, in a checkpoint of it or a JSON file.",
        ),
    ] = None,
    sizes: Annotated[
        list[str] | None, typer.Option("--size", metavar="SMALL=LARGE", help="A size that --shapes does not show.")
    ] = None,
) -> None:
    """Convert a checkpoint by a mapping, one array at a time."""
    from tensorgraft.cli.port import convert_weights as run_conversion

    raise typer.Exit(run_conversion(mapping, checkpoint, out, shapes, sizes or []))


@app.command(context_settings={"allow_interspersed_args": True})
def compare(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="The program: script.py, module:function or file.py:function.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="The script's arguments; or a second program, module:x or file.py:x."),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on", metavar="BACKEND", help="A backend; may be repeated. `native` is the program's own framework."
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="The number of timed calls after the first.")] = 10,
    tolerance: Annotated[
        float, typer.Option(help="The largest difference, relative to an array's largest value.")
    ] = 1e-4,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON; - for standard output.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Plot the times.")] = None,
    inputs: Inputs = None,
    target_inputs: TargetInputs = None,
    table: IsTable = False,
) -> None:
    """Compare results, gradients, time and memory of a program on several backends, or two programs with each other.

    FUNCTION is called with a device and returns (step, args); step(*args) is compared and timed. Two programs are
    compared value by value, and the first difference is named.
    """
    if not program.endswith(".py") and arguments:
        from tensorgraft.cli.port import diff

        if len(arguments) > 1:
            raise typer.BadParameter("two programs are compared with each other, not more")
        given = {"inputs": inputs or [], "target_inputs": target_inputs or []}
        raise typer.Exit(diff(program, arguments[0], **given, table=table))
    if inputs or target_inputs or table:
        raise typer.BadParameter("--input, --target-input and --table are for two programs, module:a module:b")
    from tensorgraft.cli.compare import compare as run_compare

    backends = on or ["native" if program.endswith(".py") else "pytorch", "jax", "numpy"]
    raise typer.Exit(
        run_compare(program, arguments or [], backends, repeat=repeat, tolerance=tolerance, out=json, plot=plot)
    )


@app.command()
def bench(
    operation: Annotated[str, typer.Argument(help="A function of the Array API, such as matmul or exp.")],
    shape: Annotated[
        str, typer.Option(help="The shape of the operands; for matmul rows,inner,columns.")
    ] = "512,512,512",
    on: Annotated[list[str] | None, typer.Option("--on", metavar="BACKEND", help="A backend; may be repeated.")] = None,
    dtype: Annotated[str, typer.Option(help="The dtype of the operands.")] = "float32",
    repeat: Annotated[int, typer.Option(min=2, help="The number of timed bursts.")] = 10,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON; - for standard output.")
    ] = None,
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
        typer.Option(
            "--drift", help="List the differences of the installed frameworks from the tested versions instead."
        ),
    ] = False,
    build: Annotated[
        bool, typer.Option("--build", help="Compile the native kernels of PyTorch's eager operators first (C++).")
    ] = False,
) -> None:
    """List backends and front ends with their versions, and the commands that install missing ones."""
    if drift:
        from tensorgraft.cli.drift import print_drift

        raise typer.Exit(print_drift())
    from tensorgraft.cli.doctor import build_native, print_report

    if build:
        try:
            build_native()
        except OSError as error:
            raise typer.BadParameter(f"--build: {error}") from None
    print_report(devices)


def main() -> None:
    app()
