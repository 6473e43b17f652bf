"""What `tg.source` compares a file with: random numbers, sizes at which the program runs, gradients that it has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tensorgraft import source
from tensorgraft.errors import TracedValueError


class Noisy(nn.Module):
    """Draws in every way that layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.dropout = nn.Dropout(0.25)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.channels = nn.Dropout1d(0.5)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(2)])

    def forward(self, x):
        h = self.dropout(self.embed(x))
        q = h.unflatten(2, (2, 4)).transpose(1, 2)
        h = h + F.scaled_dot_product_attention(q, q, q, dropout_p=0.3).transpose(1, 2).flatten(2)
        h = self.channels(self.conv(h.mT)).mT
        for block in self.blocks:
            h = block(h)
        return h + 0.1 * torch.randn_like(h)


class Borrowing(nn.Module):
    """Uses a layer of a part that does not use it itself, and weights that are computed."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4))
            self.proj = nn.Linear(4, 4)

        def forward(self, x):
            return x * self.scale

    def __init__(self) -> None:
        super().__init__()
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.part = self.Part()

    def forward(self, x):
        return self.part.proj(self.part(self.normed(x)))


class Resized(nn.Module):
    """Its size is no size of an argument."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.table = nn.Parameter(torch.rand(5, 4))

    def forward(self, x):
        rows = F.interpolate(self.table.T[None], size=self.size, mode="linear")[0].T
        return x.reshape(x.shape[0] * x.shape[1], 4) @ rows.T


class TwoSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Resized(3), Resized(6)

    def forward(self, x):
        return self.first(x), self.second(torch.cat([x, x[:, :1]], 1))


class Positions(nn.Module):
    """Knows eight positions, and writes what autograd has kept."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)

    def forward(self, x):
        e = torch.exp(self.table(torch.arange(x.shape[1])))
        y = x * (e * e)
        e.add_(1)
        return y


@pytest.mark.parametrize(
    ("onto", "style"),
    [("numpy", None), ("jax", None)]
    + [pytest.param(onto, style, marks=pytest.mark.slow)
       for onto, style in (("torch", None), ("tensorflow", None), ("tensorflow", "keras"), ("jax", "equinox"))],
)  # fmt: skip
def test_programs_that_draw_are_compared(onto, style):
    torch.manual_seed(0)
    written = source(Noisy().train(), torch.randn(2, 5, 6), onto=onto, style=style)
    assert written.report.ok and len(written.report.rows) == 3 + (onto != "numpy"), str(written.report)


def test_a_rate_that_is_wrong_is_found():
    net = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.5)).train()
    right = source(net, torch.randn(2, 3), onto="numpy", dynamic=False)
    assert right.report.ok
    wrong = right.text.replace("rate=0.5", "rate=0.4").replace(", 0.5)", ", 0.4)")
    assert wrong != right.text
    from tensorgraft.codegen.targets import target
    from tensorgraft.codegen.verification import checking
    from tensorgraft.frontends.torch.codegen.program import ModuleProgram

    example = [[("as the example", (torch.randn(2, 3),), {})]]
    found = checking.check(wrong, right.weights, right.function, target("numpy"), ModuleProgram(net), example,
                           stateful=False, random=True, key=True)  # fmt: skip
    assert not found.rows[0].ok


def test_what_has_no_numbers_in_common_is_noted():
    class Draws(nn.Module):
        def forward(self, x):
            return x + torch.multinomial(torch.ones(4), 1)

    from tensorgraft.frontends.torch.codegen.program import ModuleProgram

    evaluation = ModuleProgram(Draws()).evaluate((torch.ones(2),), {}, gradients=False, same_numbers=True)
    assert not evaluation.outputs and "multinomial" in evaluation.note


def test_sizes_and_gradients_that_the_program_does_not_have():
    written = source(Positions(), torch.rand(2, 8, 4), onto="torch")
    report = written.report
    assert report.ok and not any(row.what == "gradients" for row in report.rows)
    assert any("gradients are not compared" in note for note in report.notes)
    assert any(row.sizes == "axis 1 of 7" for row in report.rows), str(report)


def test_what_is_used_from_outside_of_a_module_is_in_its_class():
    torch.manual_seed(0)
    written = source(Borrowing(), torch.rand(2, 4), onto="torch")
    assert written.report.ok, str(written.report)
    assert "self.proj = nn.Linear" in written.text.split("class Part", 1)[1].split("class ", 1)[0]
    assert "weight.layer0(" in written.text


def test_sizes_have_no_name_of_an_argument():
    torch.manual_seed(0)
    written = source(TwoSizes(), torch.rand(2, 3, 4), onto="numpy")
    assert written.report.ok, str(written.report)


def test_values_that_are_asked_for_by_a_list_name_the_line():
    class Lists(nn.Module):
        def forward(self, x):
            return x.split(x.sum(0).long().tolist())

    with pytest.raises(TracedValueError, match=r"test_checks\.py:\d+: `return x\.split.*int64 tensor of shape \(3,\)"):
        source(Lists(), torch.ones(3, 3), onto="jax")


def test_constants_in_a_row_are_not_written_out():
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("position_ids", torch.arange(512)[None], persistent=False)
            self.register_buffer("rows", torch.arange(40)[:, None], persistent=False)
            self.register_buffer("kinds", torch.zeros(1, 512, dtype=torch.int64), persistent=False)

        def forward(self, x):
            n = x.shape[1]
            return x + self.position_ids[:, :n] + self.rows[:2] + self.kinds[:, :n]

    text = source(Table(), torch.ones(2, 5), onto="numpy").text
    assert "POSITION_IDS = np.arange(512)[None]" in text and "ROWS = np.arange(40)[:, None]" in text
    assert "KINDS = np.zeros((1, 512), dtype=np.int64)" in text


@pytest.mark.parametrize(("onto", "is_noted"), [("jax", True), ("numpy", False)])
def test_derivatives_that_frameworks_define_otherwise_are_noted(onto: str, is_noted: bool) -> None:
    class Unit(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.normalize(x).clamp(0, 1)

    notes = source(Unit(), torch.ones(2, 3), onto=onto).report.notes
    assert [f"the derivative of {name} at" in " ".join(notes) for name in ("normalize", "clamp")] == [is_noted] * 2
