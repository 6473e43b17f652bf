"""Networks of transformers, timm and torchvision, and a training step of PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ecosystem.export.programs import Arguments, Program, normal, tokens

TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT |= {"max_position_embeddings": 64}
IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
IMAGE |= {"image_size": 32, "patch_size": 8}


def _tensor(x: Any) -> Any:
    import torch

    return torch.from_numpy(x)


def _ids(batch: int, length: int) -> Any:
    ids = _tensor(tokens(batch, length))
    return (), {"input_ids": ids}


def _ids_and_mask(batch: int, length: int) -> Any:
    ids = _tensor(tokens(batch, length))
    mask = ids.new_ones(ids.shape)
    mask[-1, -2:] = 0
    return (), {"input_ids": ids, "attention_mask": mask}


def _pixels(batch: int, length: int) -> Any:
    return (), {"pixel_values": _tensor(normal(batch, 3, 32, 32))}


def _image(batch: int, length: int) -> Any:
    return (_tensor(normal(batch, 3, 64, 64)),), {}


def _pairs(batch: int, length: int) -> Any:
    return (), _ids_and_mask(batch, length)[1] | _pixels(batch, length)[1]


def _sound(batch: int, length: int) -> Any:
    return (), {"input_features": _tensor(normal(batch, 8, 60))}


def _transformer(model: str, config: str, arguments: Arguments, part: str = "", **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import torch

        transformers = importlib.import_module("transformers")
        torch.manual_seed(0)
        network = getattr(transformers, model)(getattr(transformers, config)(**settings)).eval()
        return getattr(network, part) if part else network, arguments

    return build


def _timm(name: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import timm
        import torch

        torch.manual_seed(0)
        return timm.create_model(name, num_classes=10, **settings).eval(), _image

    return build


def _torchvision(name: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import torch
        import torchvision

        torch.manual_seed(0)
        return getattr(torchvision.models, name)(num_classes=10, **settings).eval(), _image

    return build


def _step() -> Any:
    """A step of Adam: parameters and its state, in and out."""
    import torch
    from torch import nn
    from torch.func import functional_call, grad_and_value

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.Linear(16, 3))

    class Step(nn.Module):
        def forward(self, params: Any, first: Any, second: Any, count: Any, x: Any, y: Any) -> Any:
            gradients, loss = grad_and_value(lambda p: ((functional_call(network, p, (x,)) - y) ** 2).mean())(params)
            count = count + 1
            first = {n: 0.9 * m + 0.1 * gradients[n] for n, m in first.items()}
            second = {n: 0.999 * v + 0.001 * gradients[n] ** 2 for n, v in second.items()}
            scale = 1e-2 * torch.sqrt(1 - 0.999**count) / (1 - 0.9**count)
            params = {n: p - scale * first[n] / (torch.sqrt(second[n]) + 1e-8) for n, p in params.items()}
            return params, first, second, count, loss

    params = {n: p.detach() for n, p in network.named_parameters()}
    zeros = {n: torch.zeros_like(p) for n, p in params.items()}

    def arguments(batch: int, length: int) -> Any:
        state = params, zeros, {n: torch.zeros_like(p) for n, p in params.items()}, torch.zeros(())
        return (*state, _tensor(normal(batch, 7)), _tensor(normal(batch, 3))), {}

    return Step(), arguments


def _of(library: str, name: str, build: Callable[[], Any], sequence: bool = False) -> Program:
    return Program(name, library, "torch", build, sequence)


_CLIP = {
    "text_config": TEXT | {"eos_token_id": 1, "projection_dim": 16},
    "vision_config": IMAGE | {"projection_dim": 16},
    "projection_dim": 16,
}
_LLAMA = TEXT | {"num_key_value_heads": 2, "use_cache": False}
_GPT2 = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False}
_T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_DISTIL = {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}
_WHISPER = {"vocab_size": 99, "num_mel_bins": 8, "d_model": 32, "max_source_positions": 30, "encoder_layers": 2}
_WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1}
_WHISPER |= {"encoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_layers": 1, "decoder_attention_heads": 4}

_SWIN = {"img_size": 64, "window_size": 4, "depths": (1, 1, 2, 1), "embed_dim": 24}
_DENSENET = {"growth_rate": 16, "block_config": (2, 3, 2, 2), "num_init_features": 32}
_T, _I = "transformers", "timm"
PROGRAMS = [
    _of(_T, "BERT", _transformer("BertModel", "BertConfig", _ids_and_mask, **TEXT), True),
    _of(_T, "GPT-2", _transformer("GPT2LMHeadModel", "GPT2Config", _ids, **_GPT2), True),
    _of(_T, "Llama", _transformer("LlamaForCausalLM", "LlamaConfig", _ids_and_mask, **_LLAMA), True),
    _of(_T, "T5 encoder", _transformer("T5EncoderModel", "T5Config", _ids_and_mask, **_T5), True),
    _of(_T, "DistilBERT", _transformer("DistilBertModel", "DistilBertConfig", _ids_and_mask, **_DISTIL), True),
    _of(_T, "ViT", _transformer("ViTModel", "ViTConfig", _pixels, **IMAGE)),
    _of(_T, "CLIP", _transformer("CLIPModel", "CLIPConfig", _pairs, **_CLIP), True),
    _of(_T, "Whisper encoder", _transformer("WhisperModel", "WhisperConfig", _sound, "encoder", **_WHISPER)),
    _of(_I, "ResNet-18", _timm("resnet18")),
    _of(_I, "EfficientNet", _timm("test_efficientnet")),
    _of(_I, "ConvNeXt", _timm("test_convnext")),
    _of(_I, "ViT of timm", _timm("test_vit", img_size=64)),
    _of(_I, "MobileNetV3", _timm("mobilenetv3_small_050")),
    _of(
        _I, "Swin", _timm("swin_tiny_patch4_window7_224", img_size=64, window_size=4, depths=(1, 1, 2, 1), embed_dim=24)
    ),
    _of(
        "torchvision",
        "DenseNet",
        _torchvision("DenseNet", growth_rate=16, block_config=(2, 3, 2, 2), num_init_features=32),
    ),
    _of("torchvision", "ShuffleNetV2", _torchvision("shufflenet_v2_x0_5")),
    _of("PyTorch", "step of Adam", _step),
]
