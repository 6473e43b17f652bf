"""The subcommands and their options. What they do is imported when they run: `--help` stays fast."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="tensorgraft",
    help="Run a PyTorch program, unchanged, on another tensor framework.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


# What follows the script's name belongs to the script, options included: as `python script.py --steps 5`.
@app.command(context_settings={"allow_interspersed_args": False})
def run(
    program: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.")],
    on: Annotated[str, typer.Option("--on", metavar="BACKEND", help="Such as jax, numpy or jax:gpu:0.")] = "jax",
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as in `python -m`.")] = False,
    lazy: Annotated[
        bool,
        typer.Option("--lazy", help="Record operations; compile and run them together where a value is asked for."),
    ] = False,
    jit_report: Annotated[bool, typer.Option("--jit-report", help="Say at the end what was compiled.")] = False,
    strict_fallbacks: Annotated[
        bool, typer.Option("--strict-fallbacks", help="An operator that would run on the CPU is an error.")
    ] = False,
    compile_cache: Annotated[
        bool | None,
        typer.Option(
            "--compile-cache/--no-compile-cache",
            help="Keep compiled programs for later runs, which is the default, or do not.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a PyTorch script: where it asks for an accelerator or for CUDA, it gets BACKEND."""
    from tensorgraft.cli.run import run_program

    raise typer.Exit(
        run_program(
            program,
            on=on,
            module=module,
            lazy=lazy,
            jit_report=jit_report,
            strict_fallbacks=strict_fallbacks,
            compile_cache=compile_cache,
        )
    )


@app.command()
def doctor() -> None:
    """List the backends: versions, devices, and the command that installs what is missing."""
    from tensorgraft.cli.doctor import print_report

    print_report()


def main() -> None:
    app()
