"""With no framework: the import, and what is asked for, say what to install."""

import subprocess
import sys
import warnings

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import tensorgraft as tg
(warning,) = said
assert 'pip install "tensorgraft[torch,jax]"' in str(warning.message) and warning.filename == __file__, warning

import tensorgraft.array_api as xp  # noqa: E402

assert tg.backends() == ["numpy"], tg.backends()
x = xp.zeros((3, 4))
x[1:].T[0] = 5.0
assert float(xp.sum(x)) == 10 and str(x.device) == "numpy"

for name in ("jax", "torch", "tensorflow"):
    try:
        xp.ones(3, device=name)
    except tg.BackendNotAvailableError as error:
        assert f'pip install "tensorgraft[{name}]"' in str(error), error
    else:
        raise AssertionError(name)

CALLS = {
    "tg.device": lambda: tg.device("numpy"),
    "tg.torch": lambda: tg.torch,
    "tg.graft": lambda: tg.graft(lambda x: x, onto="jax"),
    "tg.graft, of JAX": lambda: tg.graft(lambda x: x, onto="numpy"),
    "tg.source, without ruff": lambda: tg.source(lambda x: x, x, onto="numpy"),
    "random numbers, without SciPy": lambda: tg.random.normal(tg.random.key(0), (3,)),
}
for name, call in CALLS.items():
    try:
        call()
    except ImportError as error:
        assert 'pip install "tensorgraft[' in str(error), f"{name}: {type(error).__name__}: {error}"
    else:
        raise AssertionError(f"{name} needs no framework")
assert tg.transforms.report() == []

for arguments, words in {("doctor",): 'tensorgraft[torch]"', ("--version",): tg.__version__}.items():
    said = subprocess.run([sys.executable, "-m", "tensorgraft", *arguments], capture_output=True, text=True)
    assert not said.returncode and words in said.stdout.replace("\n", ""), said
