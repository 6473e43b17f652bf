"""Networks of images: timm, torchvision and transformers; keras.applications and KerasHub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ecosystem.port.packages import provide
from ecosystem.port.pair import Pair, Program, Weights, channels_first, images, load, randomized, weights
from ecosystem.port.tables import Loader, assign, by_layers, checkpoint, in_order, transformers_configuration

CLASSES = 10
SHAPE = (64, 64, 3)  # Keras asks for one where there is a classifier; the second example has more images
Arguments = tuple[tuple[Any, ...], tuple[Any, ...]]
Examples = Callable[[int], Arguments]


def sides(*sizes: int, scale: float = 1.0) -> Examples:
    """Return the arguments with images of these sides, channels first and last; the target's are scaled."""

    def arguments(size: int) -> Arguments:
        image = images(2 + size, sizes[size])
        return (channels_first(image),), (image * np.float32(scale),)

    return arguments


def timm_model(name: str, **settings: Any) -> Callable[[], Program]:
    """Return the factory of a model of timm."""

    def build() -> Program:
        provide()
        import timm

        return randomized(timm.create_model(name, num_classes=CLASSES, **settings).eval(), 1)

    return build


def application(name: str, **settings: Any) -> Callable[[], Program]:
    """Return the factory of a model of keras.applications, whose outputs are logits."""

    def build() -> Program:
        import keras

        model = getattr(keras.applications, name)(
            input_shape=SHAPE, weights=None, classes=CLASSES, classifier_activation=None, **settings
        )
        return randomized(model, 2, keep="^normalization")

    return build


def _densenet() -> Program:
    provide()
    import torchvision

    return randomized(torchvision.models.DenseNet(32, (2, 3, 2, 2), 64, num_classes=CLASSES).eval(), 1)


def _keras_densenet() -> Program:
    from keras.src.applications.densenet import DenseNet

    model = DenseNet([2, 3, 2, 2], weights=None, classes=CLASSES, input_shape=SHAPE, classifier_activation=None)
    return randomized(model, 2)


def _vgg() -> Program:
    provide()
    import torch
    from torchvision.models.vgg import VGG, cfgs, make_layers

    model = VGG(make_layers(cfgs["D"]), num_classes=CLASSES)
    model.avgpool = torch.nn.Identity()  # of an image of 64 pixels Keras flattens what there is
    model.classifier[0] = torch.nn.Linear(512 * 2 * 2, 4096)
    return randomized(model.eval(), 1)


def _convert_vgg(source: Program, target: Program) -> Program:
    for layer, prefix in in_order(source, target):
        values = weights(source)
        if prefix == "classifier.0":
            weight = values[f"{prefix}.weight"].reshape(4096, 512, 2, 2).transpose(0, 2, 3, 1)
            values[f"{prefix}.weight"] = weight.reshape(4096, -1)
        assign(layer, values, prefix)
    return target


def _resnet50(as_in_keras: bool) -> Program:
    provide()
    import torch
    import torchvision

    model = torchvision.models.resnet50(num_classes=CLASSES)
    for module in model.modules() if as_in_keras else ():
        if isinstance(module, torchvision.models.resnet.Bottleneck):
            module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
        elif isinstance(module, torch.nn.BatchNorm2d):
            module.eps = 1.001e-5
    return randomized(model.eval(), 1)


def _resnet50_places(source: Program, target: Program) -> list[tuple[Any, str]]:
    places = {"conv1_conv": "conv1", "conv1_bn": "bn1", "predictions": "fc"}
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            to, of = f"conv{stage + 2}_block{block + 1}", f"layer{stage + 1}.{block}"
            for i in range(1, 4):
                places |= {f"{to}_{i}_conv": f"{of}.conv{i}", f"{to}_{i}_bn": f"{of}.bn{i}"}
            if block == 0:
                places |= {f"{to}_0_conv": f"{of}.downsample.0", f"{to}_0_bn": f"{of}.downsample.1"}
    return [(target.get_layer(to), of) for to, of in places.items()]


DEPTHS, WIDTHS = (1, 2, 1, 1), (16, 24, 32, 40)


def convnext() -> Program:
    provide()
    from timm.models.convnext import ConvNeXt

    return randomized(ConvNeXt(depths=DEPTHS, dims=WIDTHS, num_classes=CLASSES).eval(), 1)


def keras_convnext() -> Program:
    from keras.src.applications.convnext import ConvNeXt

    model = ConvNeXt(
        list(DEPTHS),
        list(WIDTHS),
        include_preprocessing=False,
        weights=None,
        classes=CLASSES,
        classifier_activation=None,
        input_shape=SHAPE,
        name="convnext",
    )
    return randomized(model, 2)


def convnext_to_keras(values: Weights, target: Program) -> Program:
    """Write ConvNeXt's weights, by timm's names, into Keras's model."""
    for stage, depth in enumerate(DEPTHS):
        if stage == 0:
            convolution, norm = target.get_layer("convnext_stem").layers[-2:]
            first, second = "stem.0", "stem.1"
        else:
            norm, convolution = target.get_layer(f"convnext_downsampling_block_{stage - 1}").layers[-2:]
            first, second = f"stages.{stage}.downsample.1", f"stages.{stage}.downsample.0"
        assign(convolution, values, first)
        assign(norm, values, second)
        for block in range(depth):
            to, of = f"convnext_stage_{stage}_block_{block}", f"stages.{stage}.blocks.{block}"
            names = {"depthwise_conv": "conv_dw", "layernorm": "norm"}
            names |= {"pointwise_conv_1": "mlp.fc1", "pointwise_conv_2": "mlp.fc2"}
            for name, place in names.items():
                assign(target.get_layer(f"{to}_{name}"), values, f"{of}.{place}")
            target.get_layer(f"{to}_layer_scale").gamma.assign(values[f"{of}.gamma"])
    assign(target.layers[-2], values, "head.norm")
    assign(target.layers[-1], values, "head.fc")
    return target


def _resnet() -> Program:
    provide()
    from timm.models.resnet import Bottleneck, ResNet

    return randomized(ResNet(Bottleneck, (2, 1, 2, 1), channels=(64, 16, 24, 32), num_classes=CLASSES).eval(), 1)


def _hub_resnet() -> Program:
    from keras_hub.models import ResNetBackbone, ResNetImageClassifier

    backbone = ResNetBackbone(
        stackwise_num_filters=[64, 16, 24, 32],
        stackwise_num_blocks=[2, 1, 2, 1],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="bottleneck_block",
        use_pre_activation=False,
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        image_shape=(None, None, 3),
    )
    return randomized(ResNetImageClassifier(backbone=backbone, num_classes=CLASSES, preprocessor=None), 2)


def _convert_hub_resnet(source: Program, target: Program) -> Program:
    from keras_hub.src.utils.timm import convert_resnet

    loader, configuration = Loader(weights(source)), {"architecture": "resnet50"}
    convert_resnet.convert_weights(target.backbone, loader, configuration)
    convert_resnet.convert_head(target, loader, configuration)
    return target


def vit(epsilon: float = 1e-6) -> Program:
    from transformers import ViTConfig, ViTForImageClassification

    configuration = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
        num_labels=CLASSES,
        layer_norm_eps=epsilon,
    )
    return randomized(ViTForImageClassification(configuration).eval(), 1)


def _faint_vit() -> Program:
    """Return the network with small embeddings, of which an epsilon changes more than the last digit."""
    model = vit(1e-12)
    small = {name: value * np.float32(0.01) for name, value in weights(model).items() if "embeddings" in name}
    return load(model, small)


def _hub_vit() -> Program:
    from keras_hub.models import ViTBackbone, ViTImageClassifier
    from keras_hub.src.utils.transformers.convert_vit import convert_backbone_config

    settings = convert_backbone_config(transformers_configuration(vit()))
    settings["image_shape"] = (32, 32, 3)
    model = ViTImageClassifier(backbone=ViTBackbone(**settings), num_classes=CLASSES, preprocessor=None)
    return randomized(model, 2)


def _convert_hub_vit(source: Program, target: Program) -> Program:
    from keras_hub.src.utils.transformers import convert_vit

    loader, configuration = Loader(checkpoint(source)), transformers_configuration(source)
    convert_vit.convert_weights(target.backbone, loader, configuration)
    convert_vit.convert_head(target, loader, configuration)
    return target


TF = {"pad_type": "same", "bn_eps": 1e-3}
PAIRS = [
    Pair(
        "ResNet: timm to KerasHub",
        _resnet,
        _hub_resnet,
        sides(64, 96),
        _convert_hub_resnet,
        table="keras-hub",
        packages=("timm", "torchvision", "keras-hub"),
    ),
    Pair(
        "ResNet-50: torchvision to Keras",
        lambda: _resnet50(True),
        application("ResNet50"),
        sides(64, 64),
        by_layers(_resnet50_places),
        traps="convolutions of Keras have biases, which are zero; strides of the first convolution of a block",
        packages=("torchvision",),
    ),
    Pair(
        "ResNet-50 with other strides: torchvision to Keras",
        lambda: _resnet50(False),
        application("ResNet50"),
        sides(64, 64),
        by_layers(_resnet50_places),
        traps="torchvision strides in the second convolution of a block",
        difference="stride",
        packages=("torchvision",),
    ),
    Pair(
        "MobileNetV2: timm to Keras",
        timm_model("mobilenetv2_035", **TF),
        application("MobileNetV2", alpha=0.35),
        sides(64, 64),
        by_layers(in_order),
        traps="padding SAME, depthwise kernels",
        packages=("timm", "torchvision"),
    ),
    Pair(
        "MobileNetV2 with symmetric padding: timm to Keras",
        timm_model("mobilenetv2_035", bn_eps=1e-3),
        application("MobileNetV2", alpha=0.35),
        sides(64, 64),
        by_layers(in_order),
        difference="padding",
        packages=("timm", "torchvision"),
    ),
    Pair(
        "MobileNetV3: timm to Keras",
        timm_model("tf_mobilenetv3_small_100"),
        application("MobileNetV3Small", include_preprocessing=False),
        sides(64, 64),
        by_layers(in_order),
        traps="padding SAME, squeeze and excitation, a classifier that is a convolution in Keras",
        packages=("timm", "torchvision"),
    ),
    Pair(
        "EfficientNet-B0: timm to Keras",
        timm_model("tf_efficientnet_b0"),
        application("EfficientNetB0"),
        sides(64, 64, scale=255.0),
        by_layers(in_order),
        traps="Keras divides images by 255 and normalizes them by weights of its own",
        packages=("timm", "torchvision"),
    ),
    Pair(
        "DenseNet: torchvision to Keras",
        _densenet,
        _keras_densenet,
        sides(64, 64),
        by_layers(in_order),
        packages=("torchvision",),
    ),
    Pair(
        "VGG-16: torchvision to Keras",
        _vgg,
        application("VGG16"),
        sides(64, 64),
        _convert_vgg,
        traps="the flattened image: rows of the first dense kernel are in another order",
        packages=("torchvision",),
    ),
    Pair(
        "ConvNeXt: timm to Keras",
        convnext,
        keras_convnext,
        sides(64, 64),
        lambda source, target: convnext_to_keras(weights(source), target),
        packages=("timm", "torchvision"),
    ),
    Pair(
        "ViT: transformers to KerasHub",
        vit,
        _hub_vit,
        sides(32, 32),
        _convert_hub_vit,
        table="keras-hub",
        source_outputs=lambda result: result.logits,
        packages=("keras-hub",),
    ),
    Pair(
        "ViT with another epsilon: transformers to KerasHub",
        _faint_vit,
        _hub_vit,
        sides(32, 32),
        _convert_hub_vit,
        table="keras-hub",
        traps="the converter does not read the epsilon of the checkpoint",
        difference="epsilon",
        source_outputs=lambda result: result.logits,
        packages=("keras-hub",),
    ),
]
