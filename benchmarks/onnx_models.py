"""ONNX models in `jax.jit`, against onnxruntime and the same networks by hand in JAX.

The networks are exported by PyTorch with random weights. Processor time of one core; first calls include reading the
file.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks import networks, subjects
from benchmarks.measure import Row, interleaved

import tensorgraft as tg

RUNTIME, HAND = "onnxruntime", "JAX by hand"
LIMITS = {RUNTIME: 1.2, HAND: 1.05}
NETWORKS = {"ResNet-18": networks.resnet, "GPT": networks.gpt, "LSTM": networks.lstm}


def bert(length: int = 128) -> tuple[torch.nn.Module, torch.Tensor]:
    from transformers import BertConfig, BertModel

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.bert(input_ids=ids).last_hidden_state

    torch.manual_seed(0)
    return Encoder().eval(), torch.randint(30000, (1, length))


def resnet50() -> tuple[torch.nn.Module, torch.Tensor]:
    from transformers import ResNetConfig, ResNetModel

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.resnet = ResNetModel(ResNetConfig())

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.resnet(images).pooler_output

    torch.manual_seed(0)
    return Pooled().eval(), torch.randn(1, 3, 224, 224)


def export(model: torch.nn.Module, x: torch.Tensor, path: Path) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), path, dynamo=False, input_names=["x"], output_names=["y"], opset_version=18)


def compare(name: str, model: torch.nn.Module, x: torch.Tensor, by_hand: Callable[[], Any] | None) -> Iterator[Row]:
    """Raises AssertionError where the results differ."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(model, x, path)
        jax.block_until_ready(jnp.ones(3) + 1)
        start = time.process_time()
        net = tg.graft(path, onto="jax")
        call = jax.jit(lambda params, buffers, x: net.apply(params, buffers, x)[0])
        ours = np.asarray(call(net.params, net.buffers, x.numpy()))
        first = time.process_time() - start
        start = time.process_time()
        session = onnxruntime.InferenceSession(path, options)
        expected = session.run(None, {"x": x.numpy()})[0]
        first_of_runtime = time.process_time() - start
    assert np.abs(ours - expected).max() <= 1e-4 * np.abs(expected).max(), f"{name}: results differ"
    inputs = jnp.asarray(x.numpy())
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: call(net.params, net.buffers, inputs).block_until_ready(),
        RUNTIME: lambda: session.run(None, {"x": x.numpy()}),
    }
    if by_hand is not None:
        calls[HAND] = by_hand
    seconds = interleaved(calls, 1, 6, time.process_time)
    for against in list(calls)[1:]:
        yield Row(f"{name} from ONNX", seconds["ours"], seconds[against], against, LIMITS[against])
    yield Row(f"{name} from ONNX, first call", first, first_of_runtime, RUNTIME)


def measure() -> Iterator[Row]:
    torch.set_num_threads(1)
    for name, make in NETWORKS.items():
        work = make()
        yield from compare(name, work.model.eval(), work.inputs, subjects.by_hand(work, False).call)
    for name, make_pair in {"ResNet-50": resnet50, "BERT-base": bert}.items():
        yield from compare(name, *make_pair(), None)
