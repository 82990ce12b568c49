# SPDX-License-Identifier: Apache-2.0
"""GPT-NeoX and Pythia (Black et al. 2022): query, key and value of one head after the other in one weight."""

from collections.abc import Iterator
from typing import Any

from megatron_core.checkpoint.huggingface.family import (
    Family,
    different,
    positions,
    read_activation,
    write_activation,
)
from megatron_core.checkpoint.huggingface.link import Link, link
from megatron_core.checkpoint.huggingface.rotary import read_rotary, write_rotary
from megatron_core.checkpoint.huggingface.settings import Settings
from megatron_core.config.model import ModelConfig

_ROTARY: dict[str, Any] = {"base": "rotary_emb_base", "share": "rotary_pct", "default_share": 0.25}


def _read(settings: Settings) -> ModelConfig:
    h, length = settings.integer("hidden_size"), settings.integer("max_position_embeddings", 2048)
    heads = settings.integer("num_attention_heads")
    settings.require("attention_bias", True, "its MLP has biases, and ours are in all linears or in none")
    model = ModelConfig(
        num_layers=settings.integer("num_hidden_layers"),
        hidden_size=h,
        num_attention_heads=heads,
        kv_channels=h // heads,
        ffn_hidden_size=settings.integer("intermediate_size"),
        seq_length=length,
        max_position_embeddings=length,
        vocab_size=settings.integer("vocab_size"),
        norm_epsilon=settings.number("layer_norm_eps", 1e-5),
        hidden_dropout=settings.number("hidden_dropout", 0.0),
        attention_dropout=settings.number("attention_dropout", 0.0),
        use_parallel_residual=settings.boolean("use_parallel_residual", True),
        untie_embeddings_and_output_weights=not settings.boolean("tie_word_embeddings", False),
        **read_rotary(settings, **_ROTARY),
        **read_activation(settings.text("hidden_act", "gelu")),
    )
    settings.refuse_rest(("classifier_dropout", "is_decoder"))
    return model


def _write(model: ModelConfig) -> dict[str, Any]:
    return {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.ffn_size,
        "max_position_embeddings": positions(model),
        "vocab_size": model.vocabulary,
        "layer_norm_eps": model.norm_epsilon,
        "hidden_act": write_activation(model),
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        "attention_bias": True,
        "use_parallel_residual": model.use_parallel_residual,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        **write_rotary(model, **_ROTARY),
    }


def _misfits(model: ModelConfig) -> list[str]:
    wanted = {
        "position_embedding_type": "rope",
        "normalization": "LayerNorm",
        "swiglu": False,
        "add_bias_linear": True,
        "qk_layernorm": False,
        "query_groups": model.num_attention_heads,
        "head_dim": model.hidden_size // model.num_attention_heads,
    }
    return different(model, wanted)


def _links(model: ModelConfig) -> Iterator[Link]:
    h, v = model.hidden_size, model.vocabulary
    yield link("embedding.tokens.weight", (v, h), "gpt_neox.embed_in.weight", (v, h))
    for layer in range(model.num_layers):
        yield from _layer(model, f"layers.{layer}", f"gpt_neox.layers.{layer}")
    for kind in ("weight", "bias"):
        yield link(f"final_norm.{kind}", (h,), f"gpt_neox.final_layer_norm.{kind}", (h,))
    if model.untie_embeddings_and_output_weights:
        yield link("head.weight", (v, h), "embed_out.weight", (v, h))


def _layer(model: ModelConfig, ours: str, theirs: str) -> Iterator[Link]:
    h, a, d, f = model.hidden_size, model.num_attention_heads, model.head_dim, model.ffn_size
    for kind in ("weight", "bias"):
        yield link(f"{ours}.attention_norm.{kind}", (h,), f"{theirs}.input_layernorm.{kind}", (h,))
        yield link(f"{ours}.mlp_norm.{kind}", (h,), f"{theirs}.post_attention_layernorm.{kind}", (h,))
    for name, shape, rows in (("q", (a,), (1, 0, 1)), ("kv", (a, 2), (1, 1, 3))):
        for kind, last in (("weight", (h,)), ("bias", ())):
            yield link(
                f"{ours}.attention.{name}.{kind}", (*shape, d, *last),
                f"{theirs}.attention.query_key_value.{kind}", (3 * a * d, *last),
                seen=(a, 3, d, *last), seen_rows=rows,
            )  # fmt: skip
    yield link(f"{ours}.attention.output.weight", (h, a, d), f"{theirs}.attention.dense.weight", (h, a * d))
    yield link(f"{ours}.attention.output.bias", (h,), f"{theirs}.attention.dense.bias", (h,))
    yield link(f"{ours}.mlp.up.weight", (f, h), f"{theirs}.mlp.dense_h_to_4h.weight", (f, h))
    yield link(f"{ours}.mlp.up.bias", (f,), f"{theirs}.mlp.dense_h_to_4h.bias", (f,))
    yield link(f"{ours}.mlp.down.weight", (h, f), f"{theirs}.mlp.dense_4h_to_h.weight", (h, f))
    yield link(f"{ours}.mlp.down.bias", (h,), f"{theirs}.mlp.dense_4h_to_h.bias", (h,))


GPT_NEOX = Family(
    name="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    read_config=_read,
    write_config=_write,
    misfits=_misfits,
    links=_links,
    prefix="gpt_neox.",
    head="embed_out.weight",
    unused=r"(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
)
