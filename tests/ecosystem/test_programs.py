"""A sample of `make ecosystem`: other people's programs, unmodified, on a backend each."""

from __future__ import annotations

import pytest
from ecosystem import functions, scripts

SLOW = pytest.mark.slow  # what the others show, too, and takes longer
SCRIPTS = [
    pytest.param("trainer", "numpy", marks=SLOW),
    pytest.param("accelerate_loop", "jax", marks=SLOW),
    pytest.param("lightning_fit", "numpy", marks=SLOW),
    pytest.param("peft_reload", "numpy", marks=SLOW),
    pytest.param("diffusers_unet", "numpy", marks=SLOW),
    pytest.param("torchmetrics_loop", "numpy", marks=SLOW),
    ("torchscript_model", "jax"),
    ("safetensors_files", "jax"),
    pytest.param("gaussian_process", "numpy", marks=SLOW),
    ("graph_networks", "jax"),
    ("graph_networks", "numpy"),
]
FUNCTIONS = [
    ("jax", "flax_linen", "numpy", ["train", "decoder gradient"]),
    pytest.param("jax", "flax_nnx", "torch", ["train"], marks=SLOW),
    ("jax", "haiku_net", "numpy", ["gradient", "lstm"]),
    ("jax", "equinox_model", "torch", ["train"]),
    ("jax", "diffrax_solve", "numpy", ["adaptive"]),
    pytest.param("jax", "optimistix_solve", "torch", ["root", "least squares"], marks=SLOW),
    pytest.param("jax", "numpyro_model", "numpy", ["potential"], marks=SLOW),
    pytest.param("jax", "blackjax_sampler", "tensorflow", ["mala"], marks=SLOW),
    ("arrays", "scikit_learn", "torch", []),
    pytest.param("arrays", "xarray_labels", "tensorflow", [], marks=SLOW),
    ("arrays", "array_api_extra", "jax", ["pad", "nunique", "at"]),
    ("arrays", "scipy_functions", "numpy", []),
    ("arrays", "einops_patterns", "tensorflow", []),
]


@pytest.mark.parametrize(("name", "backend"), SCRIPTS)
def test_scripts(name: str, backend: str) -> None:
    if not scripts.is_installed(name):
        pytest.skip(f"{name} needs {scripts.EXTRA[name]}, which is not installed")
    outcome = scripts.run(name, backend)
    assert outcome.passed, str(outcome)


@pytest.mark.parametrize(("area", "name", "backend", "cases"), FUNCTIONS)
def test_functions(area: str, name: str, backend: str, cases: list[str]) -> None:
    outcomes = functions.run(area, name, backend, cases)
    assert len(outcomes) >= max(len(cases), 1)
    assert all(o.passed for o in outcomes), "\n".join(str(o) for o in outcomes if not o.passed)


def test_every_program_has_its_row() -> None:
    """What a newcomer adds to `ecosystem/programs` runs in `make test`, too (or, marked slow, in `make test-all`), or
    says here why not."""
    left_out = {"generate", "trl_sft"}  # 25 s and more each
    absent = {name for name in scripts.EXTRA if not scripts.is_installed(name)}
    assert {getattr(row, "values", row)[0] for row in SCRIPTS} | left_out == set(scripts.names()) | absent
    rows = [getattr(row, "values", row) for row in FUNCTIONS]
    for area in ("jax", "arrays"):
        assert {name for a, name, *_ in rows if a == area} == set(functions.names(area))
