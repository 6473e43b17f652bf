"""The programs of docs/sparse.md run, one after the other, and give what they say."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

TEXT = (Path(__file__).parents[4] / "docs" / "sparse.md").read_text()


@pytest.mark.filterwarnings("ignore:Sparse")  # beta state; invariant checks are implicitly disabled
def test_programs():
    names: dict = {}
    for program in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(program, "docs/sparse.md", "exec"), names)
    torch.testing.assert_close(names["product"].cpu(), names["dense"] @ torch.ones(3, 2))
    assert names["losses"][2] < names["losses"][0]
    assert names["embedding"].weight.grad.layout is torch.sparse_coo
    np.testing.assert_allclose(names["line"] @ np.asarray(names["solution"]), np.ones(10), rtol=1e-8)
    assert names["features"].shape == (4, 2) and list(names["buffers"])[-1] == "adjacency.values"
