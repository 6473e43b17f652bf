"""Scripts that run generated files where neither tensorgraft nor the source framework is.

`python -I -c SCRIPT model.py model.safetensors NAME JOB`: in the folder JOB `inputs_K.npz` has the arrays of the K-th
example, `a0, a1, ...`, and `outputs_K.npz` gets the results: `o:PLACE`, and `g:NAME` of those with the entry
`gradients`. They import the framework of the target alone.
"""

import re
from pathlib import Path

_COMMON = re.compile(r"from tensorgraft\.codegen\.verification\.runners\.common import (\([^)]*\)|.*)\n")


def script(runner: str) -> str:
    """Return the text of a runner with the functions of `common` written into it, so that it stands alone."""
    text, common = (Path(__file__).with_name(f"{name}.py").read_text() for name in (runner, "common"))
    return _COMMON.sub(lambda _: common.partition("\n\n")[2], text)
