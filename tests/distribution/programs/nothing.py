"""With no framework: what is asked for says what to install."""

import subprocess
import sys

import tensorgraft as tg
import tensorgraft.array_api as xp

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
}
for name, call in CALLS.items():
    try:
        call()
    except ImportError as error:
        assert 'pip install "tensorgraft[' in str(error), f"{name}: {type(error).__name__}: {error}"
    else:
        raise AssertionError(f"{name} needs no framework")

for arguments, words in {("doctor",): 'tensorgraft[torch]"', ("--version",): tg.__version__}.items():
    said = subprocess.run([sys.executable, "-m", "tensorgraft", *arguments], capture_output=True, text=True)
    assert not said.returncode and words in said.stdout.replace("\n", ""), said
