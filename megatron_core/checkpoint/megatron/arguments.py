# SPDX-License-Identifier: Apache-2.0
"""The arguments that Megatron saves with its weights as our configuration of the same model.

Its parser has some 800 of them; those that shape a GPT are read, those that would make it another function must have
the value that leaves it alone, the rest is of no account to the weights.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from megatron_core.checkpoint.megatron.inert import Inert
from megatron_core.checkpoint.plain import quote
from megatron_core.config.fields import all_fields
from megatron_core.config.megatron_flags.table import flag_table
from megatron_core.config.model import ModelConfig
from megatron_core.config.run import RunConfig
from megatron_core.config.validate import model_violations
from megatron_core.config.values import from_yaml
from megatron_core.errors import CheckpointError

Arguments = Mapping[str, Any]

SAME = (
    *("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels", "max_position_embeddings"),
    *("make_vocab_size_divisible_by", "swiglu", "squared_relu", "rotary_percent", "rotary_base", "rotary_interleaved"),
    *("rotary_seq_len_interpolation_factor", "use_rope_scaling", "rope_scaling_factor", "add_bias_linear"),
    *("add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights", "hidden_dropout", "attention_dropout"),
    *("apply_query_key_layer_scaling", "init_method_std", "seq_length", "norm_epsilon"),
)
"""Arguments that are fields of ours, with the same meaning."""
_OLD_NAMES: Mapping[str, str] = {
    "encoder_seq_length": "seq_length",
    "layernorm_epsilon": "norm_epsilon",
    "rotary_position_embeddings_theta": "rotary_base",
    "rope_theta": "rotary_base",
}
"""Read where the field's own name is absent."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "num_experts": (1, [1]),
    "rope_type": ("rope",),
    "softmax_type": ("vanilla",),
    "attention_head_type": ("multihead",),
    "glu_activation": ("swiglu",),
    "hybrid_attention_ratio": (0.0,),
    "hybrid_mlp_ratio": (0.0,),
    "glu_linear_offset": (0.0,),
}
"""Values beside None, False and 0 that leave the model as it is."""
_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_OTHER_MODELS = (
    *("apply_layernorm_1p", "apply_residual_connection_post_layernorm", "attention_output_gate", "qk_l2_norm"),
    *("multi_latent_attention", "mtp_num_layers", "window_size", "sliding_window_size", "no_rope_freq", "onnx_safe"),
    *("activation_func_clamp_value", "quick_geglu", "geglu", "reglu", "liglu", "heterogeneous_layers_config_path"),
    *("heterogeneous_layers_config_encoded_json", "hybrid_layer_pattern", "hybrid_override_pattern"),
    *("is_hybrid_model", "experimental_attention_variant", "use_mup", "retro_add_retriever", "mrope_section"),
    *("enable_mhc_connections", "parallel_attn", "parallel_layernorm", "use_post_ln", "embed_layernorm"),
)
"""Arguments that make another function of the weights, beside those of _NEUTRAL."""


def read_arguments(saved: object, origin: str) -> Arguments:
    """The fields of an argparse.Namespace, those of other than plain values inert.

    Raises CheckpointError where it is something else.
    """
    if isinstance(saved, Inert) and saved.name == "argparse.Namespace" and saved.fields:
        return {key: _plain(value) for key, value in saved.fields.items() if isinstance(key, str)}
    raise CheckpointError(f"{origin} holds no arguments of Megatron-LM (args), which say what its weights are")


def _plain(value: object) -> object:
    """The value, if comparing and printing it can do no harm; one of numpy's numbers as Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list) and len(value) <= 64 and all(type(item) in (int, float, str) for item in value):
        return value
    if value is None or isinstance(value, (bool, float, str, Inert)) or (type(value) is int and abs(value) < 2**62):
        return value
    return Inert(type(value).__name__)


def model_config(arguments: Arguments, vocab_size: int, origin: str) -> ModelConfig:
    """Our configuration of the model, with derived sizes written out; `vocab_size` is the true one.

    Raises CheckpointError with everything that is not understood or cannot be.
    """
    problems = list(_other_functions(arguments))
    values: dict[str, object] = {"vocab_size": vocab_size}
    for name, value in (*_same(arguments), *_groups(arguments), *_derived(arguments)):
        try:
            values[name] = _field_value(name, value)
        except ValueError as error:
            problems.append(f"{name} {error}")
    config = ModelConfig(**values)  # type: ignore[arg-type]
    problems = problems or model_violations(RunConfig(model=config), 1)
    if problems:
        raise CheckpointError("\n  ".join([f"{origin}: the model in it cannot be had here:", *problems]))
    return dataclasses.replace(
        config, ffn_hidden_size=config.ffn_size, kv_channels=config.head_dim, gelu=config.gelu_form
    )


def _same(arguments: Arguments) -> Iterator[tuple[str, Any]]:
    for name in SAME:
        if arguments.get(name) is not None:
            yield name, arguments[name]
    for old, name in _OLD_NAMES.items():
        if arguments.get(name) is None and arguments.get(old) is not None:
            yield name, arguments[old]


def _groups(arguments: Arguments) -> Iterator[tuple[str, Any]]:
    """Key/value heads, under the three names that forks gave them."""
    if arguments.get("group_query_attention"):
        yield from (("group_query_attention", True), ("num_query_groups", arguments.get("num_query_groups", 1)))
        return
    for old in ("num_key_value_heads", "num_attention_heads_kv"):
        groups = arguments.get(old)
        if groups is not None and groups != arguments.get("num_attention_heads"):
            yield from (("group_query_attention", True), ("num_query_groups", groups))


def _derived(arguments: Arguments) -> Iterator[tuple[str, Any]]:
    """What has other words there: norm, GELU, positions."""
    norm = arguments.get("normalization")
    if norm is not None:
        yield "normalization", _NORMS.get(norm.lower(), norm) if isinstance(norm, str) else norm
    if arguments.get("glu_activation") == "swiglu":
        yield "swiglu", True
    if not (arguments.get("swiglu") or arguments.get("squared_relu") or arguments.get("glu_activation")):
        # The fused kernel, which adds the bias as well, is the tanh form; without it GELU is exact (CNV-03).
        fused = arguments.get("bias_gelu_fusion", True) and arguments.get("add_bias_linear", True)
        yield "gelu", "tanh" if fused or arguments.get("openai_gelu") else "exact"
    kind = arguments.get("position_embedding_type")
    if kind == "rotary" or arguments.get("use_rotary_position_embeddings"):
        kind = "rope"
    elif arguments.get("add_position_embedding") is False and kind in (None, "learned_absolute"):
        kind = "none"
    if kind is not None:
        yield "position_embedding_type", kind


def _other_functions(arguments: Arguments) -> Iterator[str]:
    rules = flag_table().flags
    for name in (*_OTHER_MODELS, *_NEUTRAL):
        value = arguments.get(name)
        if isinstance(value, (bool, int, float, str, list, type(None))) and (
            not value or value in _NEUTRAL.get(name, ())
        ):
            continue
        rule = rules.get(name.replace("_", "-"))
        reason = rule.reason if rule is not None and rule.status == "refused" else "that variant is not built here"
        yield f"{name} {quote(value)}: {reason}"


def _field_value(name: str, value: object) -> object:
    """As a field of ours. Raises ValueError with the end of a sentence, which shows the value: it must be short."""
    if not isinstance(value, (bool, int, float, str, Inert)) or len(quote(value)) > 60:
        raise ValueError(f"is {quote(value)}")
    whole_number = _TYPES[name].scalar is float and type(value) is int
    return from_yaml(_TYPES[name], float(value) if whole_number else value)  # type: ignore[arg-type]


_TYPES = {field.name: field.type for field in all_fields() if field.section == "model"}
