# SPDX-License-Identifier: Apache-2.0
"""GPT-2 (Radford et al. 2019). Its Conv1D weights are [in, out], query, key and value side by side in one."""

from collections.abc import Iterator
from typing import Any

from megatron_core.checkpoint.huggingface.family import Family, different, read_activation, write_activation
from megatron_core.checkpoint.huggingface.link import Link, link
from megatron_core.checkpoint.huggingface.settings import Settings
from megatron_core.config.model import ModelConfig

_SUMMARY = "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout"
_WHY = "our attention scales scores by 1/sqrt(d) and sees its own sequence alone"


def _read(settings: Settings) -> ModelConfig:
    h, length = settings.integer("n_embd"), settings.integer("n_positions", settings.integer("n_ctx", 1024))
    heads = settings.integer("n_head")
    settings.require("scale_attn_weights", True, _WHY)
    settings.require("scale_attn_by_inverse_layer_idx", False, _WHY)
    settings.require("add_cross_attention", False, _WHY)
    model = ModelConfig(
        num_layers=settings.integer("n_layer"),
        hidden_size=h,
        num_attention_heads=heads,
        kv_channels=h // heads,
        ffn_hidden_size=settings.integer("n_inner", 4 * h),
        seq_length=length,
        max_position_embeddings=length,
        vocab_size=settings.integer("vocab_size"),
        norm_epsilon=settings.number("layer_norm_epsilon", 1e-5),
        hidden_dropout=settings.number("resid_pdrop", 0.1),
        attention_dropout=settings.number("attn_pdrop", 0.1),
        untie_embeddings_and_output_weights=not settings.boolean("tie_word_embeddings", True),
        **read_activation(settings.text("activation_function", "gelu_new")),
    )
    settings.refuse_rest(("embd_pdrop", "reorder_and_upcast_attn", *_SUMMARY.split()))
    return model


def _write(model: ModelConfig) -> dict[str, Any]:
    return {
        "n_layer": model.num_layers,
        "n_embd": model.hidden_size,
        "n_head": model.num_attention_heads,
        "n_inner": model.ffn_size,
        "n_positions": model.max_position_embeddings,
        "n_ctx": model.max_position_embeddings,
        "vocab_size": model.vocabulary,
        "layer_norm_epsilon": model.norm_epsilon,
        "activation_function": write_activation(model),
        "resid_pdrop": model.hidden_dropout,
        "embd_pdrop": model.hidden_dropout,
        "attn_pdrop": model.attention_dropout,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
    }


def _misfits(model: ModelConfig) -> list[str]:
    wanted = {
        "position_embedding_type": "learned_absolute",
        "normalization": "LayerNorm",
        "swiglu": False,
        "add_bias_linear": True,
        "qk_layernorm": False,
        "use_parallel_residual": False,
        "query_groups": model.num_attention_heads,
        "head_dim": model.hidden_size // model.num_attention_heads,
    }
    return different(model, wanted)


def _links(model: ModelConfig) -> Iterator[Link]:
    h, v = model.hidden_size, model.vocabulary
    yield link("embedding.tokens.weight", (v, h), "transformer.wte.weight", (v, h))
    places = (model.max_position_embeddings, h)
    yield link("embedding.positions.weight", places, "transformer.wpe.weight", places)
    for layer in range(model.num_layers):
        yield from _layer(model, f"layers.{layer}", f"transformer.h.{layer}")
    for kind in ("weight", "bias"):
        yield link(f"final_norm.{kind}", (h,), f"transformer.ln_f.{kind}", (h,))
    if model.untie_embeddings_and_output_weights:
        yield link("head.weight", (v, h), "lm_head.weight", (v, h))


def _layer(model: ModelConfig, ours: str, theirs: str) -> Iterator[Link]:
    h, a, d, f = model.hidden_size, model.num_attention_heads, model.head_dim, model.ffn_size
    for kind in ("weight", "bias"):
        yield link(f"{ours}.attention_norm.{kind}", (h,), f"{theirs}.ln_1.{kind}", (h,))
        yield link(f"{ours}.mlp_norm.{kind}", (h,), f"{theirs}.ln_2.{kind}", (h,))
    for name, shape, rows in (("q", (a,), (1, 0, 1)), ("kv", (a, 2), (1, 1, 3))):
        yield link(
            f"{ours}.attention.{name}.weight", (*shape, d, h), f"{theirs}.attn.c_attn.weight", (h, 3 * a * d),
            seen=(h, 3, a, d), seen_rows=rows, order=(2, 1, 3, 0),
        )  # fmt: skip
        yield link(
            f"{ours}.attention.{name}.bias", (*shape, d), f"{theirs}.attn.c_attn.bias", (3 * a * d,),
            seen=(3, a, d), seen_rows=(0, *rows[1:]), order=(1, 0, 2),
        )  # fmt: skip
    yield link(
        f"{ours}.attention.output.weight", (h, a, d), f"{theirs}.attn.c_proj.weight", (a * d, h),
        seen=(a, d, h), order=(2, 0, 1),
    )  # fmt: skip
    yield link(f"{ours}.attention.output.bias", (h,), f"{theirs}.attn.c_proj.bias", (h,))
    yield link(f"{ours}.mlp.up.weight", (f, h), f"{theirs}.mlp.c_fc.weight", (h, f), seen=(h, f), order=(1, 0))
    yield link(f"{ours}.mlp.up.bias", (f,), f"{theirs}.mlp.c_fc.bias", (f,))
    yield link(f"{ours}.mlp.down.weight", (h, f), f"{theirs}.mlp.c_proj.weight", (f, h), seen=(f, h), order=(1, 0))
    yield link(f"{ours}.mlp.down.bias", (h,), f"{theirs}.mlp.c_proj.bias", (h,))


GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    read_config=_read,
    write_config=_write,
    misfits=_misfits,
    links=_links,
    prefix="transformer.",
    head="lm_head.weight",
    unused=r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",
)
