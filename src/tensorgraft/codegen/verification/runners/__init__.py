"""Scripts that run generated files where neither tensorgraft nor the source framework is.

`python -I -c SCRIPT model.py model.safetensors NAME JOB`: in the folder JOB `inputs_K.npz` has the arrays of the K-th
example, `a0, a1, ...`, and `outputs_K.npz` gets the results: `o:PLACE`, and `g:NAME` of those with the entry
`gradients`. They import the framework of the target alone.
"""

import importlib
import re
from pathlib import Path


def script(runner: str, package: str = __name__) -> str:
    """Return the text of a runner of a package with the functions of `common` written into it, so that it stands
    alone."""
    folder = Path(importlib.import_module(package).__file__ or "").parent
    text, common = ((folder / f"{name}.py").read_text() for name in (runner, "common"))
    imports = re.compile(rf"from {re.escape(package)}\.common import (\([^)]*\)|.*)\n")
    return imports.sub(lambda _: common.partition("\n\n")[2], text)
