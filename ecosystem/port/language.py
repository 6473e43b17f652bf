"""Language models: transformers and KerasHub, by the converters that KerasHub has, and T5, which has none."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ecosystem.port.pair import Pair, Program, randomized, tokens, weights
from ecosystem.port.tables import keras_hub, transformers_configuration

VOCABULARY = 97
SIZES = ((2, 12), (3, 17))  # sequences and their length
Arguments = tuple[tuple[Any, ...], tuple[Any, ...]]


def _torch(kind: str, model: str, **settings: Any) -> Callable[[], Program]:
    """Return the factory of a model of transformers."""

    def build() -> Program:
        transformers = importlib.import_module("transformers")
        configuration = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **settings)
        return randomized(getattr(transformers, model)(configuration).eval(), 1)

    return build


def _hub(
    kind: str, converter: str, source: Callable[[], Program], task: bool = False, **changed: Any
) -> Callable[[], Program]:
    """Return the factory of a backbone of KerasHub, or its language model, as its loader would configure it."""

    def build() -> Program:
        models = importlib.import_module("keras_hub.models")
        module = importlib.import_module(f"keras_hub.src.utils.transformers.convert_{converter}")
        settings = module.convert_backbone_config(transformers_configuration(source())) | changed
        backbone = getattr(models, f"{kind}Backbone")(**settings)
        program = getattr(models, f"{kind}CausalLM")(backbone=backbone, preprocessor=None) if task else backbone
        return randomized(program, 2)

    return build


def _ids_and_mask(size: int) -> tuple[np.ndarray, np.ndarray]:
    ids = tokens(*SIZES[size], VOCABULARY)
    mask = np.ones_like(ids)
    mask[-1, -4:] = 0
    return ids, mask


def _encoder(size: int) -> Arguments:
    ids, mask = _ids_and_mask(size)
    return (ids, mask), ({"token_ids": ids, "padding_mask": mask},)


def _encoder_of_segments(size: int) -> Arguments:
    ids, mask = _ids_and_mask(size)
    segments = (np.arange(ids.shape[1]) > ids.shape[1] // 2) * np.ones_like(ids)
    return (ids, mask, segments), ({"token_ids": ids, "padding_mask": mask, "segment_ids": segments},)


def _decoder(size: int) -> Arguments:
    ids = tokens(*SIZES[size], VOCABULARY)
    return (ids,), ({"token_ids": ids, "padding_mask": np.ones_like(ids)},)


def _sequences(size: int) -> Arguments:
    """Return the arguments of an encoder and a decoder: both have token numbers and a mask."""
    ids, mask = _ids_and_mask(size)
    decoded = tokens(ids.shape[0], ids.shape[1] - 3, VOCABULARY, seed=1)
    visible = np.ones_like(decoded)
    target = {
        "encoder_token_ids": ids,
        "encoder_padding_mask": mask,
        "decoder_token_ids": decoded,
        "decoder_padding_mask": visible,
    }
    return (ids, mask, decoded, visible), (target,)


def _pair(
    name: str, kind: str, model: str, hub: str, converter: str, arguments: Callable[[int], Arguments], **more: Any
) -> Pair:
    settings, changed = more.pop("settings"), more.pop("changed", {})
    task = model.endswith("ForCausalLM") or model.endswith("LMHeadModel")
    source = _torch(kind, model, **settings)
    table = keras_hub(f"transformers.convert_{converter}", transformers_configuration)
    outputs = {"source_outputs": lambda result: result.logits} if task else {}
    return Pair(
        f"{name}: transformers to KerasHub",
        source,
        _hub(hub, converter, source, task, **changed),
        arguments,
        (lambda a, b: (table(a, b.backbone), b)[1]) if task else table,
        table="keras-hub",
        packages=("keras-hub",),
        **(outputs | more),
    )


def _bert(name: str, layers: int, width: int, heads: int, activation: str = "gelu_new", **more: Any) -> Pair:
    settings = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 128,
        "hidden_act": activation,
    }
    return _pair(
        name,
        "Bert",
        "BertModel",
        "Bert",
        "bert",
        _encoder_of_segments,
        settings=settings,
        target_outputs=lambda result: (result["sequence_output"], result["pooled_output"]),
        **{"traps": "kernels of attention are transposed, and split by heads", **more},
    )


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_ROTARY = _SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 128}


def _convert_t5(source: Program, target: Program) -> Program:
    """Write T5's weights into KerasHub's: by its objects, as the names of its norms depend on what was built before."""
    values = weights(source)
    target.token_embedding.embeddings.assign(values["shared.weight"])
    for side in ("encoder", "decoder"):
        getattr(target, f"{side}_layer_norm").weight.assign(values[f"{side}.final_layer_norm.weight"])
        for i, layer in enumerate(getattr(target, f"{side}_transformer_layers")):
            block = f"{side}.block.{i}.layer"
            attentions = [("self_attention", f"{block}.0", "SelfAttention")]
            if side == "decoder":
                attentions.append(("cross_attention", f"{block}.1", "EncDecAttention"))
            for name, place, attention in attentions:
                for to, of in {"query": "q", "key": "k", "value": "v", "output": "o"}.items():
                    projector = getattr(getattr(layer, name), f"{to}_projector")
                    projector.kernel.assign(values[f"{place}.{attention}.{of}.weight"].T)
                getattr(layer, f"{name}_layer_norm").weight.assign(values[f"{place}.layer_norm.weight"])
            if i == 0:
                positions = values[f"{block}.0.SelfAttention.relative_attention_bias.weight"]
                layer.self_attention.relative_attention_bias.assign(positions)
            place = f"{block}.{len(attentions)}"
            for to, of in {"input_projector": "wi_0", "gate_projector": "wi_1", "output_projector": "wo"}.items():
                getattr(layer, to).kernel.assign(values[f"{place}.DenseReluDense.{of}.weight"].T)
            layer.layer_norm.weight.assign(values[f"{place}.layer_norm.weight"])
    return target


def _gelu(x: Any) -> Any:
    import keras

    return keras.activations.gelu(x, approximate=True)


def _keras_t5() -> Program:
    from keras_hub.models import T5Backbone

    return randomized(T5Backbone(VOCABULARY, 2, 4, 32, 48, key_value_dim=8, activation=_gelu), 2)


PAIRS = [
    _bert("BERT", 2, 32, 4),
    _bert(
        "BERT with another GELU",
        2,
        32,
        4,
        "gelu",
        traps="KerasHub computes GELU by its tanh form, whatever the checkpoint's configuration says",
        difference="gelu",
    ),
    _pair(
        "DistilBERT",
        "DistilBert",
        "DistilBertModel",
        "DistilBert",
        "distilbert",
        _encoder,
        settings={"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 128},
    ),
    _pair(
        "ALBERT",
        "Albert",
        "AlbertModel",
        "Albert",
        "albert",
        _encoder_of_segments,
        settings=_SMALL | {"embedding_size": 24, "max_position_embeddings": 128, "hidden_act": "gelu_new"},
        traps="both layers have the same weights",
        target_outputs=lambda result: (result["sequence_output"], result["pooled_output"]),
    ),
    _pair(
        "GPT-2",
        "GPT2",
        "GPT2LMHeadModel",
        "GPT2",
        "gpt2",
        _decoder,
        settings={"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
        traps="query, key and value are one kernel, which is not transposed; the head is the embedding",
    ),
    _pair(
        "Llama 3",
        "Llama",
        "LlamaForCausalLM",
        "Llama3",
        "llama3",
        _decoder,
        settings=_ROTARY | {"rms_norm_eps": 1e-6},
        traps="rotary positions in halves, fewer heads of keys, a gate, a head of its own",
    ),
    _pair(
        "Mistral",
        "Mistral",
        "MistralForCausalLM",
        "Mistral",
        "mistral",
        _decoder,
        settings=_ROTARY | {"sliding_window": 64},
        table_error=1e-3,  # KerasHub's converter rounds to float16
    ),
    _pair(
        "Gemma",
        "Gemma",
        "GemmaForCausalLM",
        "Gemma",
        "gemma",
        _decoder,
        settings=_ROTARY | {"head_dim": 8},
        traps="a scale of one more than the weight, an embedding times a root, a tied head",
    ),
    _pair(
        "BART",
        "Bart",
        "BartModel",
        "Bart",
        "bart",
        _sequences,
        settings={
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
        },
        traps="positions begin at the third row; encoder and decoder share an embedding",
        source_outputs=lambda result: (result.encoder_last_hidden_state, result.last_hidden_state),
        target_outputs=lambda result: (result["encoder_sequence_output"], result["decoder_sequence_output"]),
    ),
    Pair(
        "T5: transformers to KerasHub",
        _torch(
            "T5",
            "T5Model",
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
        ),
        _keras_t5,
        _sequences,
        _convert_t5,
        traps="relative positions of the first layer serve all; encoder and decoder share an embedding",
        source_outputs=lambda result: (result.encoder_last_hidden_state, result.last_hidden_state),
        target_outputs=lambda result: (result["encoder_sequence_output"], result["decoder_sequence_output"]),
        packages=("keras-hub",),
    ),
]
BERT_BASE = _bert("BERT-base", 12, 768, 12)  # for times
