"""`tg.source` of PyTorch modules: results, gradients and other sizes as the module's, and a text as people write it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tensorgraft import source
from tensorgraft.codegen.output.writing import NotExpressibleError
from tensorgraft.codegen.structure.size_merging import Extent, PartingError, joined, merge
from tensorgraft.codegen.structure.sizes import Sizes


class Block(nn.Module):
    """A block."""

    def __init__(self, width: int, stride: int = 1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        hidden = F.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Network(nn.Module):
    """Rows of blocks over a tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8, padding_idx=0)
        self.blocks = nn.ModuleList([Block(8) for _ in range(3)])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        batch, length = ids.shape
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        scores = x.reshape(batch * length, 8)
        return {"logits": self.head(x), "mean": scores.sum() / length}


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 6, 3, stride=2)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, images):
        x = F.max_pool2d(torch.relu(self.first(images)), 2)
        return self.norm(self.second(x)).mean((2, 3))


class Writes(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[:, 0] = 0
        view = y.view(-1)
        view[1] = 7.0
        y[:, 1:3] += x[:, :2]
        return y, view.sum()


IDS = torch.tensor([[1, 2, 3, 0, 5], [4, 0, 10, 2, 2]])
IMAGES = torch.linspace(-1, 1, 2 * 3 * 10 * 10).reshape(2, 3, 10, 10).cos()


def body(text: str, name: str) -> str:
    """A function of the file."""
    return text.split(f"def {name}(", 1)[1].split("\n\n\n", 1)[0]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Network().eval()


def test_a_row_of_blocks_is_one_function_and_a_loop(network):
    written = source(network, IDS, onto="jax")
    assert written.report.ok, str(written.report)
    assert written.text.count("def block(") == 1 and written.text.count("def linear(") == 1
    assert '    for p in params["blocks"]:\n        x = block(p, x)\n' in written.text
    assert "hidden = " not in body(written.text, "network") and "jax.nn.gelu" in body(written.text, "block")
    assert {g.title for g in written.report.groups if g.checked_sizes} == {"batch", "axis 1"}
    assert [row.what for row in written.report.rows] == ["results", "gradients", "results", "results"]
    assert "tensorgraft" not in written.text.split('"""', 2)[2] and "torch" not in written.text.split('"""', 2)[2]


def test_the_weights_of_a_checkpoint_load(network, tmp_path):
    written = source(network, IDS, onto="jax", check=False)
    written.save(tmp_path / "network.py")
    assert set(written.weights) == {n for n, _ in network.named_parameters()}
    code = (
        "import sys; sys.modules['torch'] = sys.modules['tensorgraft'] = None\n"
        "import network, numpy as np\n"
        "params = network.load_weights('network.safetensors')\n"
        "network.save_weights(params, 'again.safetensors')\n"
        f"print(float(network.network(params, np.array({IDS.tolist()}))['mean']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(network(IDS)["mean"].item(), rel=1e-5)
    from safetensors.torch import load_file

    again = Network()
    again.load_state_dict(load_file(tmp_path / "again.safetensors"))
    assert torch.equal(again.head.weight, network.head.weight)


def test_what_differs_between_modules_is_an_argument():
    torch.manual_seed(0)
    written = source(Convolutions().eval(), IMAGES, onto="jax")
    assert written.report.ok, str(written.report)
    assert written.text.count("def conv2d(") == 1
    assert "padding=1" in body(written.text, "convolutions")


def turned(x, by):
    first, second = x.chunk(2, -1)
    return x * by + torch.cat([-second, first], -1)


class Shared(nn.Module):
    """Heads in groups, and a state of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 8, 2, batch_first=True)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, state):
        batch, length, _ = x.shape
        k = x.view(batch, length, 2, 4).transpose(1, 2)
        near, far = turned(k, 2.0), turned(k, 3.0)
        wide = near.repeat_interleave(3, dim=1)
        start = x if batch == 0 else far.transpose(1, 2).reshape(batch, length, 8)
        noisy = self.drop(start * 2)
        output, state = self.rnn(noisy, state)
        return wide, noisy.sum(), output, state


def test_names_are_those_of_the_program():
    torch.manual_seed(0)
    state = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    written = source(Shared().eval(), torch.randn(3, 5, 8), state, onto="jax")
    assert written.report.ok, str(written.report)
    assert [g.size for g in written.report.groups if g.checked_sizes] == [3, 5]  # the state's second axis is the batch
    said = body(written.text, "shared")
    assert "near = turned(" in said
    assert "jnp.repeat(" in said and "3, axis=1)" in said and "noisy = " in said
    assert "output, state_0, state_1 = lstm(" in said
    assert written.text.count("def turned") == 1 and "transpose" not in body(written.text, "turned")


def test_modules_of_other_widths_at_sizes_that_are_kept():
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(n, n), nn.Unflatten(1, (2, -1)), nn.Flatten()) for n in (4, 4)))
    written = source(
        nn.Sequential(net, nn.Linear(4, 6), Block(6), Block(6)), torch.ones(3, 4), onto="jax", dynamic=False
    )
    assert written.report.ok and not written.report.groups
    written = source(Convolutions().eval(), IMAGES, onto="jax", dynamic=False, check=False)
    assert "def conv2d(" in written.text


def test_statistics_that_are_written_come_out():
    torch.manual_seed(0)
    written = source(Convolutions().train(), IMAGES, onto="jax")
    assert written.report.ok, str(written.report)
    assert "running_mean" in body(written.text, "convolutions") and "buffers: dict" in body(
        written.text, "convolutions"
    )


def test_writes_through_views():
    written = source(Writes(), torch.arange(12.0).reshape(3, 4), onto="jax")
    assert written.report.ok, str(written.report)


@pytest.mark.parametrize("onto", ["numpy", "torch", "tensorflow"])
def test_other_targets(network, onto):
    written = source(network, IDS, onto=onto)
    assert written.report.ok, str(written.report)


class Padded(nn.Module):
    def forward(self, x):
        wide = F.pad(x, (2, 1), mode="reflect") + F.pad(x, (1, 2), mode="replicate")
        plane = F.pad(x, (1, 2, 0, 1), mode="reflect").sum(-1) + F.pad(x, (5, 0, 0, 1), mode="replicate").sum(-1)
        solid = F.pad(x[None], (1, 2, 0, 1, 1, 0), mode="reflect"), F.pad(x[None], (0, 4, 2, 0, 1, 1), mode="replicate")
        return wide, plane, *solid, F.pad(x, (-1, 3), mode="reflect"), F.pad(x, (2, -3), mode="replicate")


@pytest.mark.parametrize("onto", ["jax", "numpy", "tensorflow", "torch", "array_api"])
def test_padding_is_said_in_words(onto):
    written = source(Padded(), torch.arange(60.0).reshape(2, 5, 6).sin(), onto=onto)
    assert written.report.ok, str(written.report)
    assert "CONSTANT" not in written.text and not written.weights
    assert onto == "array_api" or written.text.lower().count("reflect") >= 4


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.stft(x, 64, 16, window=torch.hann_window(64), return_complex=True).abs()


def test_the_padding_of_a_spectrum_is_no_table():
    written = source(Spectrum(), torch.arange(4000.0).sin()[None], onto="jax")
    assert written.report.ok, str(written.report)
    assert 'mode="reflect"' in written.text and not written.weights


def test_axes_behind_an_ellipsis_count():
    class Parts(nn.Module):
        def forward(self, x):
            parts = x.view(*x.shape[:-1], 4, 3, 2)
            return parts[..., 0, :] * parts[..., 1, :] - parts[:, :, :, 2]

    written = source(Parts(), torch.arange(2 * 5 * 24.0).reshape(2, 5, 24), onto="jax")
    assert written.report.ok, str(written.report)


def test_a_loop_over_time_stays_at_its_length():
    class Loop(nn.Module):
        def forward(self, x):
            total = x[:, 0]
            for t in range(1, x.shape[1]):
                total = torch.tanh(total + x[:, t])
            return total

    written = source(Loop(), torch.ones(2, 4), onto="jax")
    (length,) = [g for g in written.report.groups if g.title != "batch"]
    assert written.report.ok and not length.checked_sizes and "test_source.py" in length.reason


def test_values_that_are_asked_for_are_an_error():
    class Asks(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(Exception, match=r"test_source\.py.*x\.sum\(\) > 0"):
        source(Asks(), torch.ones(3), onto="jax")


def test_wrong_arguments():
    with pytest.raises(ValueError, match="onto='mxnet'"):
        source(nn.ReLU(), torch.ones(2), onto="mxnet")
    with pytest.raises(ValueError, match="style"):
        source(nn.ReLU(), torch.ones(2), onto="jax", style="classes")
    with pytest.raises(TypeError, match=r"tg\.source takes"):
        source(3, onto="jax")


def test_the_check_that_is_written_fails_for_another_file(tmp_path):
    written = source(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.ones(2, 3), onto="jax")
    written.save(tmp_path / "net.py", check=True)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_net.py"]
    assert subprocess.run(run, cwd=tmp_path, capture_output=True).returncode == 0
    (tmp_path / "net.py").write_text(written.text.replace("jnp.tanh", "jnp.sin"))
    assert subprocess.run(run, cwd=tmp_path, capture_output=True).returncode == 1


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((2, 3, 2), "batch"),
        ((16, 24, 24), "batch * length"),
        ((9, 9, 13), "length + 1"),
        ((24, 24, 36), "3 * length"),
        ((4, 4, 6), "length // 2"),
        ((10, 11, 14), "batch + length"),
        ((48, 72, 72), "3 * (batch * length)"),
        ((17, 23, 99), None),
    ],
)
def test_numbers_as_expressions_of_sizes(values, expected):
    import ast

    sizes = Sizes([((2, 3, 2), lambda: ast.Name("batch")), ((8, 8, 12), lambda: ast.Name("length"))])
    expression = sizes.expression(Extent(values))
    assert (None if expression is None else ast.unparse(expression)) == expected


def test_equal_numbers_are_no_extent():
    assert joined([4, 4]) == 4 and not isinstance(joined([4, 4]), Extent)
    assert joined([4, 5]).values == (4, 5)


def test_programs_of_other_structure_part():
    from tensorgraft.frontends.torch.codegen.program import ModuleProgram

    class Odd(nn.Module):
        def forward(self, x):
            return x + 1 if x.shape[0] % 2 else x * 2

    program = ModuleProgram(Odd())
    with pytest.raises(PartingError, match=r"add and multiply are called, at .*test_source\.py"):
        merge([program.trace((torch.ones(n),), {}) for n in (3, 4)])


def test_what_a_target_lacks_names_the_place():
    class Inverse(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x)

    with pytest.raises(NotExpressibleError, match=r"test_source\.py"):
        source(Inverse(), torch.eye(3), onto="array_api")


def test_what_is_left_out_is_noted_and_the_file_says_how_it_was_checked():
    class Asserts(nn.Module):
        def forward(self, x):
            assert torch.isfinite(x).all()
            return x.exp()

    written = source(Asserts(), torch.ones(3, 2), onto="jax")
    assert any("test_source.py" in note for note in written.report.notes), written.report.notes
    assert "Checked against it (as the example, batch of 5" in written.text.split('"""')[1]


class Mixed(nn.Module):
    """Autocast's casts, by the rows of the CPU's table and by what composites are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            low = self.line(x)
            products = torch.einsum("btd,bsd->bts", low, self.norm(x))
            with torch.autocast(x.device.type, enabled=False):
                wide = self.line(x)
        return {"low": low, "products": products, "wide": wide, "after": x @ wide.mT}


@pytest.mark.parametrize("onto", ["jax", "torch"])
def test_regions_of_autocast(onto):
    module, x = Mixed(), torch.randn(2, 3, 6)
    written = source(module, x, onto=onto)
    assert written.report.ok, written.report
    assert "bfloat16" in written.text
    limits = {row.what: row.limit for row in written.report.rows}
    assert limits == {"results": 2 * 2**-7, "gradients": 8 * 2**-7}
    with torch.autocast("cpu", torch.bfloat16):
        around = source(nn.Linear(6, 6), x, onto=onto)
    assert around.report.ok and "bfloat16" in around.text
    assert not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("graft")


class Received(nn.Module):
    def forward(self, x, to):
        return torch.zeros_like(x).index_add_(0, to, x)


def test_moves_of_an_axis_to_where_it_is_are_not_said():
    written = source(Received(), torch.randn(4, 3), torch.tensor([1, 0, 1, 3]), onto="jax")
    assert written.report.ok and "moveaxis" not in written.text


def test_imports_are_sorted_alike_beside_a_folder_of_the_same_name(tmp_path, monkeypatch):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "a.py").touch()
    monkeypatch.chdir(tmp_path)
    text = source(nn.Linear(2, 2), torch.randn(1, 2), onto="jax", check=False).text
    assert "import jax\nimport jax.numpy as jnp\nimport numpy as np\n" in text
