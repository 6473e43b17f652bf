"""What a target has no words for is a function of the file, with the hub's names of arrays."""

from __future__ import annotations

import torch
from torch import nn

from tensorgraft import source


def lines(module: nn.Module, *args: torch.Tensor, onto: str = "jax") -> list[str]:
    return [line.strip() for line in source(module.eval(), *args, onto=onto, check=False).text.split("\n")]


class Norms(nn.Module):
    """Group norms of two widths, whose groups are of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(2, 4), nn.GroupNorm(2, 8)])
        self.last = nn.LayerNorm(5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.last(self.norms[0](x)).sum(1) + self.norms[1](y).sum(1)


def test_norms_are_functions_with_the_names_of_the_hub() -> None:
    text = lines(Norms(), torch.ones(2, 4, 5), torch.ones(2, 8, 5), onto="numpy")
    for line in (
        "centred = x - np.mean(x, axis=-1, keepdims=True)",
        "variance = np.mean(np.square(centred), axis=-1, keepdims=True)",
        'y = centred * (1 / np.sqrt(variance + 1e-5)) * p["weight"]',
        "parts = x.reshape(batch, 2, -1)",  # one function for both widths
    ):
        assert line in text, "\n".join(text)
    assert sum(line.startswith("def group_norm") for line in text) == 1


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y, (h, c) = self.lstm(x)
        return y, h, c


def test_a_body_of_a_loop_has_names_of_its_own() -> None:
    text = lines(LSTM(), torch.ones(5, 2, 3))
    assert any(line.startswith('"""One layer (Hochreiter, Schmidhuber 1997)') for line in text)
    for line in ("def _lstm(", "h, c = state", "h = jax.nn.sigmoid(o) * jnp.tanh(c)", "return (h, c), (h,)"):
        assert text.count(line) == 1, line  # both layers call it


class Best(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(x, 2).values


def test_what_is_short_is_no_function() -> None:
    text = lines(nn.SiLU(), torch.ones(3), onto="numpy")
    assert "return x * sigmoid(x)" in text
    text = lines(Best(), torch.ones(3, 4), onto="torch")
    assert any("x.sort(" in line or "torch.sort(" in line for line in text), "\n".join(text)


def test_a_transposed_convolution_without_padding() -> None:
    s = source(nn.ConvTranspose1d(2, 3, 3, stride=2, padding=2), torch.ones(1, 2, 4), onto="jax")
    assert s.report.ok, s.report
