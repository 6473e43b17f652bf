"""Networks in JAX: Haiku's own, those of Equimo and Jaxonmodels (Equinox) and of Flaxmodels (Linen)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ecosystem.port.packages import provide
from ecosystem.port.pair import Pair, Program, Weights, channels_first, images, load, randomized, weights
from ecosystem.port.tables import kernel, written
from ecosystem.port.vision import (
    CLASSES,
    DEPTHS,
    WIDTHS,
    Arguments,
    Examples,
    convnext,
    convnext_to_keras,
    keras_convnext,
    sides,
    timm_model,
)

BLOCKS, CHANNELS = (1, 2, 1, 1), (128, 32, 64, 96)
STATISTICS = {"mean_ema.average": "running_mean", "var_ema.average": "running_var"}


def _haiku(network: Callable[..., Any], side: int) -> Program:
    """Return a function of parameters and state, and both: running averages are what inference reads."""
    import haiku
    import jax

    pure = haiku.without_apply_rng(haiku.transform_with_state(lambda image, training: network()(image, training)))
    tree = pure.init(jax.random.key(0), np.zeros((1, side, side, 3), np.float32), True)

    def apply(tree: Any, image: Any) -> Any:
        return pure.apply(*tree, image, False)[0]

    return randomized((apply, tree), 2)


def _haiku_resnet() -> Program:
    import haiku

    return _haiku(lambda: haiku.nets.ResNet(BLOCKS, CLASSES, channels_per_group=CHANNELS), 65)


def _haiku_mobilenet() -> Program:
    import haiku

    return _haiku(lambda: haiku.nets.MobileNetV1(num_classes=CLASSES), 65)


def _haiku_norm(values: Weights, to: str, of: str) -> Weights:
    """Return the weights of Haiku's batch normalization, which have axes of one element before."""
    table = {f"0.{to}.scale": values[f"{of}.weight"], f"0.{to}.offset": values[f"{of}.bias"]}
    table |= {f"1.{to}/~/{name}": values[f"{of}.{place}"] for name, place in STATISTICS.items()}
    return {name: value.reshape(1, 1, 1, -1) for name, value in table.items()}


def haiku_resnet_table(values: Weights) -> Weights:
    """Return Haiku's weights of timm's."""
    table: Weights = {}
    for group, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            to, of = f"res_net/~/block_group_{group}/~/block_{block}/~", f"layer{group + 1}.{block}"
            for i in range(3):
                table[f"0.{to}/conv_{i}.w"] = kernel(values[f"{of}.conv{i + 1}.weight"])
                table |= _haiku_norm(values, f"{to}/batchnorm_{i}", f"{of}.bn{i + 1}")
            if block == 0:
                table[f"0.{to}/shortcut_conv.w"] = kernel(values[f"{of}.downsample.0.weight"])
                table |= _haiku_norm(values, f"{to}/shortcut_batchnorm", f"{of}.downsample.1")
    table["0.res_net/~/initial_conv.w"] = kernel(values["conv1.weight"])
    table |= _haiku_norm(values, "res_net/~/initial_batchnorm", "bn1")
    return table | {"0.res_net/~/logits.w": values["fc.weight"].T, "0.res_net/~/logits.b": values["fc.bias"]}


def _timm_resnet() -> Program:
    provide()
    from timm.models.resnet import Bottleneck, ResNet

    # Haiku's channels are those of a block's result, timm's a fourth of them; the stem has 64.
    return randomized(ResNet(Bottleneck, BLOCKS, channels=[c // 4 for c in CHANNELS], num_classes=CLASSES).eval(), 1)


def _timm_mobilenet(haiku_stem: bool = True) -> Program:
    import torch

    model = timm_model("mobilenetv1_100", act_layer=torch.nn.ReLU)()
    if haiku_stem:
        model.conv_stem.padding = (0, 0)
    return model


def _haiku_mobilenet_table(values: Weights) -> Weights:
    table = {"0.mobile_net_v1/conv2_d.w": kernel(values["conv_stem.weight"])}
    table |= _haiku_norm(values, "mobile_net_v1/batch_norm", "bn1")
    table["0.mobile_net_v1/logits.w"] = values["classifier.weight"].T
    table["0.mobile_net_v1/logits.b"] = values["classifier.bias"]
    blocks = sorted({m[0] for name in values if (m := re.match(r"blocks\.\d+\.\d+", name))}, key=_numbers)
    for i, of in enumerate(blocks):
        to = f"mobile_net_v1/mobile_net_v1_block{f'_{i}' if i else ''}"
        table[f"0.{to}/depthwise_conv.w"] = values[f"{of}.conv_dw.weight"].transpose(2, 3, 1, 0)
        table[f"0.{to}/pointwise_conv.w"] = kernel(values[f"{of}.conv_pw.weight"])
        table |= _haiku_norm(values, f"{to}/batch_norm", f"{of}.bn1")
        table |= _haiku_norm(values, f"{to}/batch_norm_1", f"{of}.bn2")
    return table


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def equinox_program(module: Any, call: Callable[..., Any]) -> Program:
    """Return a function of the arrays of a module, called with each image of a batch, and the arrays."""
    import equinox as eqx
    import jax

    tree, static = eqx.partition(module, eqx.is_inexact_array)

    def apply(tree: Any, batch: Any) -> Any:
        return jax.vmap(lambda image: call(eqx.combine(tree, static), image))(batch)

    return apply, tree


def _inference(module: Any, image: Any) -> Any:
    import jax

    return module(image, key=jax.random.key(0), inference=True)


def _equimo_convnext(activation: str = "exactgelu") -> Program:
    import jax
    from equimo.models import ConvNeXt

    settings = {"depths": list(DEPTHS), "dims": list(WIDTHS), "num_classes": CLASSES, "act_layer": activation}
    return randomized(equinox_program(ConvNeXt(3, key=jax.random.key(0), **settings), _inference), 2)


def _equimo_convnext_names() -> dict[str, str]:
    """Return timm's names by Equimo's."""
    parts = {"dwconv": "conv_dw", "norm": "norm", "pwconv1": "mlp.fc1", "pwconv2": "mlp.fc2"}
    places = {"norm": "head.norm", "head": "head.fc"}
    for stage, depth in enumerate(DEPTHS):
        below = ("stem.0", "stem.1") if stage == 0 else (f"stages.{stage}.downsample.{i}" for i in (1, 0))
        places |= {f"blocks.{stage}.downsample.{part}": of for part, of in zip(("conv", "norm"), below, strict=True)}
        for block in range(depth):
            to, of = f"blocks.{stage}.blocks.{block}", f"stages.{stage}.blocks.{block}"
            places |= {f"{to}.{part}": f"{of}.{name}" for part, name in parts.items()}
    names = {f"{to}.{kind}": f"{of}.{kind}" for to, of in places.items() for kind in ("weight", "bias")}
    return names | {
        f"blocks.{stage}.blocks.{block}.ls.gamma": f"stages.{stage}.blocks.{block}.gamma"
        for stage, depth in enumerate(DEPTHS)
        for block in range(depth)
    }


def _named(names: Callable[[], dict[str, str]]) -> Callable[[Program, Program], Program]:
    """Return the conversion by names: shapes differ by axes of one element, or that a pointwise kernel has."""

    def convert(source: Program, target: Program) -> Program:
        values, own = weights(source), weights(target)
        return load(target, {to: values[of].reshape(own[to].shape) for to, of in names().items()})

    return convert


def _equimo_to_keras(source: Program, target: Program) -> Program:
    values = weights(source)
    renamed = {of: values[to] for to, of in _equimo_convnext_names().items()}
    return convnext_to_keras({n: v.ravel() if n.endswith("bias") else v for n, v in renamed.items()}, target)


def _channels_first(side: int) -> Examples:
    def arguments(size: int) -> Arguments:
        image = channels_first(images(2 + size, side))
        return (image,), (image,)

    return arguments


def _channels_last(side: int) -> Examples:
    return lambda size: sides(side, side)(size)


def _timm_vit() -> Program:
    provide()
    from timm.models.vision_transformer import VisionTransformer

    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": CLASSES}
    return randomized(VisionTransformer(**settings).eval(), 1)


def _equimo_vit() -> Program:
    import jax
    from equimo.models.vit import VisionTransformer

    settings = {"img_size": 32, "patch_size": 8, "dim": 32, "depths": [2], "num_heads": 4, "num_classes": CLASSES}
    settings |= {"in_channels": 3, "reg_tokens": 0, "global_pool": "token", "eps": 1e-6, "act_layer": "exactgelu"}
    return randomized(equinox_program(VisionTransformer(key=jax.random.key(0), **settings), _inference), 2)


def _equimo_vit_names() -> dict[str, str]:
    places = {"patch_embed.proj": "patch_embed.proj", "norm": "norm", "head": "head"}
    for i in range(2):
        parts = {"prenorm": "norm1", "norm": "norm2", "attn.qkv": "attn.qkv", "attn.proj": "attn.proj"}
        parts |= {"mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
        places |= {f"blocks.0.blocks.{i}.{to}": f"blocks.{i}.{of}" for to, of in parts.items()}
    names = {f"{to}.{kind}": f"{of}.{kind}" for to, of in places.items() for kind in ("weight", "bias")}
    return names | {"global_pos_embed.weight": "pos_embed", "cls_token": "cls_token"}


def _resnet18() -> Program:
    provide()
    import torchvision

    return randomized(torchvision.models.resnet18(num_classes=CLASSES).eval(), 1)


def _linen_resnet18() -> Program:
    provide()
    import jax
    from flaxmodels.resnet import resnet

    settings = {"output": "logits", "pretrained": None, "normalize": False, "num_classes": CLASSES}
    network = resnet.ResNet(architecture="resnet18", **settings)
    tree = network.init(jax.random.key(0), np.zeros((1, 64, 64, 3), np.float32), train=False)
    return randomized((lambda tree, image: network.apply(tree, image, train=False), tree), 2)


def _resnet18_blocks() -> dict[str, str]:
    """Return the places of convolutions, each with its norm: PyTorch's by those of Linen."""
    places = {"Conv_0": "conv1 bn1"}
    for i in range(8):
        of = f"layer{i // 2 + 1}.{i % 2}"
        places |= {f"BasicBlock_{i}.Conv_{j}": f"{of}.conv{j + 1} {of}.bn{j + 1}" for j in range(2)}
        if i in (2, 4, 6):
            places[f"BasicBlock_{i}.Conv_2"] = f"{of}.downsample.0 {of}.downsample.1"
    return places


def _linen_resnet18_table(values: Weights) -> Weights:
    table = {"params.Dense_0.kernel": values["fc.weight"].T, "params.Dense_0.bias": values["fc.bias"]}
    for to, places in _resnet18_blocks().items():
        convolution, norm = places.split()
        table[f"params.{to}.kernel"] = kernel(values[f"{convolution}.weight"])
        own = to.replace("Conv", "BatchNorm")
        table |= {f"params.{own}.scale": values[f"{norm}.weight"], f"params.{own}.bias": values[f"{norm}.bias"]}
        for name, statistic in {"mean": "running_mean", "var": "running_var"}.items():
            table[f"batch_stats.{own}.{name}"] = values[f"{norm}.{statistic}"]
    return table


def _equinox_resnet18() -> Program:
    provide()
    import equinox as eqx
    import jax
    from jaxonmodels.models import resnet

    build = eqx.nn.make_with_state(resnet.ResNet)
    settings = {"zero_init_residual": False, "groups": 1, "width_per_group": 64, "replace_stride_with_dilation": None}
    module = build(resnet.BasicBlock, [2, 2, 2, 2], CLASSES, key=jax.random.key(0), **settings)
    module = eqx.nn.inference_mode(module)
    return randomized(equinox_program(module, lambda both, image: both[0](image, both[1], inference=True)[0]), 2)


def _equinox_resnet18_table(values: Weights) -> Weights:
    table = {f"0.fc.{kind}": values[f"fc.{kind}"] for kind in ("weight", "bias")}
    places = _resnet18_blocks().values()
    for i, place in enumerate(places):
        convolution, norm = place.split()
        block = re.sub(r"(layer\d)\.", r"\1.blocks.", convolution.rpartition(".")[0])
        block = f"0.{block}." if block else "0."
        if "downsample" in convolution:
            to, own = f"{block}conv", f"{block}bn"
        else:
            to, own = f"{block}{convolution.rpartition('.')[2]}", f"{block}{norm.rpartition('.')[2]}"
        own = "0.bn" if own == "0.bn1" else own
        table[f"{to}.weight"] = values[f"{convolution}.weight"]
        table |= {f"{own}.gamma": values[f"{norm}.weight"], f"{own}.beta": values[f"{norm}.bias"]}
        for j, statistic in enumerate(("running_mean", "running_var")):
            table[f"1.{i}.{j}"] = values[f"{norm}.{statistic}"]
    return table


PAIRS = [
    Pair(
        "ResNet: timm to Haiku",
        _timm_resnet,
        _haiku_resnet,
        sides(65, 97),
        written(haiku_resnet_table),
        traps="padding SAME is symmetric at these sizes; statistics are a state of their own, with axes of one element",
        packages=("timm", "torchvision"),
    ),
    Pair(
        "ResNet of an even image: timm to Haiku",
        _timm_resnet,
        _haiku_resnet,
        sides(64, 96),
        written(haiku_resnet_table),
        difference="padding",
        packages=("timm", "torchvision"),
    ),
    Pair(
        "MobileNetV1: timm to Haiku",
        _timm_mobilenet,
        _haiku_mobilenet,
        sides(65, 97),
        written(_haiku_mobilenet_table),
        traps="depthwise kernels; statistics are a state of their own",
        packages=("timm", "torchvision"),
    ),
    Pair(
        "MobileNetV1 with a padded stem: timm to Haiku",
        lambda: _timm_mobilenet(False),
        _haiku_mobilenet,
        sides(65, 97),
        written(_haiku_mobilenet_table),
        difference="padding",
        packages=("timm", "torchvision"),
    ),
    Pair(
        "ConvNeXt: timm to Equimo",
        convnext,
        _equimo_convnext,
        _channels_first(64),
        _named(_equimo_convnext_names),
        packages=("timm", "torchvision", "equimo"),
    ),
    Pair(
        "ConvNeXt with another GELU: timm to Equimo",
        convnext,
        lambda: _equimo_convnext("gelu"),
        _channels_first(64),
        _named(_equimo_convnext_names),
        difference="gelu",
        packages=("timm", "torchvision", "equimo"),
    ),
    Pair(
        "ConvNeXt: Equimo to Keras",
        _equimo_convnext,
        keras_convnext,
        _channels_last(64),
        _equimo_to_keras,
        packages=("equimo",),
    ),
    Pair(
        "ViT: timm to Equimo",
        _timm_vit,
        _equimo_vit,
        _channels_first(32),
        _named(_equimo_vit_names),
        packages=("timm", "torchvision", "equimo"),
    ),
    Pair(
        "ResNet-18: torchvision to Flaxmodels",
        _resnet18,
        _linen_resnet18,
        _channels_last(64),
        written(_linen_resnet18_table),
        packages=("torchvision", "flaxmodels"),
    ),
    Pair(
        "ResNet-18: torchvision to Jaxonmodels",
        _resnet18,
        _equinox_resnet18,
        _channels_first(64),
        written(_equinox_resnet18_table),
        packages=("torchvision", "jaxonmodels"),
    ),
]
