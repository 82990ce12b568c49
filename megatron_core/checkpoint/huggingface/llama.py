# SPDX-License-Identifier: Apache-2.0
"""Llama 2 and 3 (Touvron et al. 2023) and what differs from it in little: Mistral, Qwen2 and Qwen3.

Gate and up of the MLP, key and value of the attention are weights of their own.
"""

from collections.abc import Iterator
from typing import Any

from megatron_core.checkpoint.huggingface.family import Family, different, positions
from megatron_core.checkpoint.huggingface.link import Link, link
from megatron_core.checkpoint.huggingface.rotary import read_rotary, write_rotary
from megatron_core.checkpoint.huggingface.settings import Settings
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError

_UNUSED = r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq"


def _common(settings: Settings, *, groups: int | None = None, head_dim: int | None = None) -> dict[str, Any]:
    """Fields of all four. `groups` and `head_dim`: what an absent key means; None: as many as heads, and h / heads."""
    h, heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    groups = settings.integer("num_key_value_heads", groups or heads)
    activation = settings.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError(f"activation {activation}: a gated MLP has silu here")
    length = settings.integer("max_position_embeddings")
    return {
        "num_layers": settings.integer("num_hidden_layers"),
        "hidden_size": h,
        "num_attention_heads": heads,
        "group_query_attention": groups != heads,
        "num_query_groups": groups if groups != heads else 1,
        "kv_channels": settings.integer("head_dim", head_dim or h // heads),
        "ffn_hidden_size": settings.integer("intermediate_size"),
        "seq_length": length,
        "max_position_embeddings": length,
        "vocab_size": settings.integer("vocab_size"),
        "normalization": "RMSNorm",
        "norm_epsilon": settings.number("rms_norm_eps", 1e-6),
        "swiglu": True,
        "hidden_dropout": 0.0,
        "attention_dropout": settings.number("attention_dropout", 0.0),
        "add_bias_linear": False,
        "untie_embeddings_and_output_weights": not settings.boolean("tie_word_embeddings", False),
        **read_rotary(settings),
    }


def _read_llama(settings: Settings) -> ModelConfig:
    fields = _common(settings)
    biased = settings.boolean("attention_bias", False)
    settings.require("mlp_bias", biased, "attention has biases in all its linears, and ours are in all or in none",
                     default=False)  # fmt: skip
    settings.require("rope_interleaved", False, "its weights are those of rotated halves")
    settings.refuse_rest(("pretraining_tp", "is_llama_config"))
    return ModelConfig(**(fields | {"add_bias_linear": biased}))


def _read_mistral(settings: Settings) -> ModelConfig:
    fields = _common(settings, groups=8)
    fields = _within(fields, settings.optional("sliding_window", 4096))
    for key in ("attention_bias", "mlp_bias"):
        settings.require(key, False, "Mistral has no biases")
    settings.refuse_rest()
    return ModelConfig(**fields)


def _read_qwen2(settings: Settings) -> ModelConfig:
    fields = _windowed(settings, _common(settings, groups=32))
    settings.require("use_mrope", False, "positions are one number a token here")
    settings.refuse_rest()
    return ModelConfig(**(fields | {"add_qkv_bias": True}))


def _read_qwen3(settings: Settings) -> ModelConfig:
    fields = _windowed(settings, _common(settings, groups=32, head_dim=128))
    settings.require("attention_bias", False, "its output projection would have a bias and its MLP none")
    settings.refuse_rest()
    return ModelConfig(**(fields | {"qk_layernorm": True}))


def _windowed(settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
    """Qwen's window: in the layers from max_window_layers on, and only where it is switched on."""
    window = settings.optional("sliding_window", 4096)
    first = settings.optional("max_window_layers", 28)
    kinds = settings.texts("layer_types")
    used = settings.boolean("use_sliding_window", False)
    layers = fields["num_layers"]
    if unknown := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        raise CheckpointError(f"layer_types has {', '.join(unknown)}: attention is causal in every layer here")
    slides = "sliding_attention" in kinds or (not kinds and (first or 0) < layers)
    return _within(fields, window if used and slides else None)


def _within(fields: dict[str, Any], window: int | None) -> dict[str, Any]:
    """No more positions than a window of attention, in which it is plainly causal."""
    length = min(fields["seq_length"], window or fields["seq_length"])
    return fields | {"seq_length": length, "max_position_embeddings": length}


def _write(model: ModelConfig) -> dict[str, Any]:
    return {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.query_groups,
        "head_dim": model.head_dim,
        "intermediate_size": model.ffn_size,
        "max_position_embeddings": positions(model),
        "vocab_size": model.vocabulary,
        "rms_norm_eps": model.norm_epsilon,
        "hidden_act": "silu",
        "attention_dropout": model.attention_dropout,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        **write_rotary(model),
    }


def _write_llama(model: ModelConfig) -> dict[str, Any]:
    return _write(model) | {"attention_bias": model.add_bias_linear, "mlp_bias": model.add_bias_linear}


def _write_mistral(model: ModelConfig) -> dict[str, Any]:
    return _write(model) | {"sliding_window": None}


def _write_qwen2(model: ModelConfig) -> dict[str, Any]:
    without = {key: value for key, value in _write(model).items() if key != "head_dim"}
    return without | {"use_sliding_window": False}


def _write_qwen3(model: ModelConfig) -> dict[str, Any]:
    return _write(model) | {"attention_bias": False, "use_sliding_window": False}


_WANTED = {
    "position_embedding_type": "rope",
    "rotary_percent": 1.0,
    "normalization": "RMSNorm",
    "swiglu": True,
    "use_parallel_residual": False,
}
_UNBIASED = {"add_bias_linear": False, "add_qkv_bias": False}


def _llama_misfits(model: ModelConfig) -> list[str]:
    found = different(model, _WANTED | {"qk_layernorm": False} | ({} if model.add_bias_linear else _UNBIASED))
    if model.hidden_size % model.num_attention_heads:
        found.append(f"hidden_size {model.hidden_size} is no multiple of {model.num_attention_heads} heads")
    return found


def _mistral_misfits(model: ModelConfig) -> list[str]:
    return different(model, _WANTED | _UNBIASED | {"qk_layernorm": False})


def _qwen2_misfits(model: ModelConfig) -> list[str]:
    own = {
        "qk_layernorm": False,
        "add_bias_linear": False,
        "add_qkv_bias": True,
        "head_dim": model.hidden_size // model.num_attention_heads,
    }
    return different(model, _WANTED | own)


def _qwen3_misfits(model: ModelConfig) -> list[str]:
    return different(model, _WANTED | _UNBIASED | {"qk_layernorm": True})


def _links(model: ModelConfig) -> Iterator[Link]:
    h, v = model.hidden_size, model.vocabulary
    yield link("embedding.tokens.weight", (v, h), "model.embed_tokens.weight", (v, h))
    for layer in range(model.num_layers):
        yield from _attention(model, f"layers.{layer}", f"model.layers.{layer}")
        yield from _mlp(model, f"layers.{layer}", f"model.layers.{layer}")
    yield link("final_norm.weight", (h,), "model.norm.weight", (h,))
    if model.untie_embeddings_and_output_weights:
        yield link("head.weight", (v, h), "lm_head.weight", (v, h))


def _attention(model: ModelConfig, ours: str, theirs: str) -> Iterator[Link]:
    a, g, d, h = model.num_attention_heads, model.query_groups, model.head_dim, model.hidden_size
    yield link(f"{ours}.attention_norm.weight", (h,), f"{theirs}.input_layernorm.weight", (h,))
    ours, theirs = f"{ours}.attention", f"{theirs}.self_attn"
    kinds: list[tuple[str, tuple[int, ...]]] = [("weight", (h,))]
    if model.add_bias_linear or model.add_qkv_bias:
        kinds.append(("bias", ()))
    for kind, last in kinds:
        yield link(f"{ours}.q.{kind}", (a, d, *last), f"{theirs}.q_proj.{kind}", (a * d, *last))
        for index, name in enumerate(("k_proj", "v_proj")):
            shape = (g, 2, d, *last)
            rows = (1, index, index + 1)
            yield link(f"{ours}.kv.{kind}", shape, f"{theirs}.{name}.{kind}", (g * d, *last), ours_rows=rows)
    yield link(f"{ours}.output.weight", (h, a, d), f"{theirs}.o_proj.weight", (h, a * d))
    if model.add_bias_linear:
        yield link(f"{ours}.output.bias", (h,), f"{theirs}.o_proj.bias", (h,))
    if model.qk_layernorm:
        yield link(f"{ours}.q_norm.weight", (d,), f"{theirs}.q_norm.weight", (d,))
        yield link(f"{ours}.k_norm.weight", (d,), f"{theirs}.k_norm.weight", (d,))


def _mlp(model: ModelConfig, ours: str, theirs: str) -> Iterator[Link]:
    h, f = model.hidden_size, model.ffn_size
    yield link(f"{ours}.mlp_norm.weight", (h,), f"{theirs}.post_attention_layernorm.weight", (h,))
    ours, theirs = f"{ours}.mlp", f"{theirs}.mlp"
    for index, name in enumerate(("gate_proj", "up_proj")):
        rows = (0, index, index + 1)
        yield link(f"{ours}.up.weight", (2, f, h), f"{theirs}.{name}.weight", (f, h), ours_rows=rows)
        if model.add_bias_linear:
            yield link(f"{ours}.up.bias", (2, f), f"{theirs}.{name}.bias", (f,), ours_rows=rows)
    yield link(f"{ours}.down.weight", (h, f), f"{theirs}.down_proj.weight", (h, f))
    if model.add_bias_linear:
        yield link(f"{ours}.down.bias", (h,), f"{theirs}.down_proj.bias", (h,))


LLAMA, MISTRAL, QWEN2, QWEN3 = (
    Family(
        name=name,
        architecture=architecture,
        read_config=read,
        write_config=write,
        misfits=misfits,
        links=_links,
        prefix="model.",
        head="lm_head.weight",
        unused=_UNUSED,
    )
    for name, architecture, read, write, misfits in (
        ("llama", "LlamaForCausalLM", _read_llama, _write_llama, _llama_misfits),
        ("mistral", "MistralForCausalLM", _read_mistral, _write_mistral, _mistral_misfits),
        ("qwen2", "Qwen2ForCausalLM", _read_qwen2, _write_qwen2, _qwen2_misfits),
        ("qwen3", "Qwen3ForCausalLM", _read_qwen3, _write_qwen3, _qwen3_misfits),
    )
)
