# SPDX-License-Identifier: Apache-2.0
"""Rules about the model: heads, positions, activation, vocabulary."""

from collections.abc import Iterator

from megatron_core.config.rules.rule import Rule
from megatron_core.config.run import RunConfig


def _heads(config: RunConfig, world: int) -> Iterator[str]:
    model = config.model
    if model.kv_channels is None and model.hidden_size % model.num_attention_heads:
        yield (
            f"--hidden-size {model.hidden_size} is not a multiple of --num-attention-heads "
            f"{model.num_attention_heads}: change one, or set the heads' width with --kv-channels"
        )
    if model.group_query_attention and model.num_attention_heads % model.num_query_groups:
        yield (
            f"--num-attention-heads {model.num_attention_heads} is not a multiple of "
            f"--num-query-groups {model.num_query_groups}"
        )
    if not model.group_query_attention and model.num_query_groups not in (1, model.num_attention_heads):
        yield f"--num-query-groups {model.num_query_groups} is read only with --group-query-attention: add it"


def _positions(config: RunConfig, world: int) -> Iterator[str]:
    model = config.model
    rows, length = model.max_position_embeddings, model.seq_length
    if model.position_embedding_type == "learned_absolute" and rows == 0:
        yield f"--max-position-embeddings is required with learned positions: at least --seq-length {length}"
    elif 0 < rows < length:
        yield f"--max-position-embeddings {rows} is less than --seq-length {length}: raise it to {length}"


def _rotary(config: RunConfig, world: int) -> Iterator[str]:
    model = config.model
    if model.position_embedding_type != "rope":
        if model.use_rope_scaling or model.rotary_seq_len_interpolation_factor is not None:
            yield "scaling of rotary positions needs --position-embedding-type rope"
        return
    if model.use_rope_scaling and model.rotary_seq_len_interpolation_factor is not None:
        yield "--use-rope-scaling and --rotary-seq-len-interpolation-factor exclude each other: choose one"
    rotated = int(model.head_dim * model.rotary_percent)
    if rotated < 2 or rotated % 2:
        yield (
            f"--rotary-percent {model.rotary_percent} of a head's {model.head_dim} dimensions is {rotated}, which must "
            "be even and at least 2: change it or --kv-channels"
        )


def _activation(config: RunConfig, world: int) -> Iterator[str]:
    model = config.model
    if model.swiglu and model.squared_relu:
        yield "--swiglu and --squared-relu exclude each other: choose one"
    if model.ffn_size == 0:
        yield (
            f"--swiglu makes the MLP 8/3 of --hidden-size {model.hidden_size} wide, rounded down to a multiple of 64, "
            "which is 0: set --ffn-hidden-size"
        )


def _vocabulary(config: RunConfig, world: int) -> Iterator[str]:
    model, tp = config.model, config.parallel.tensor_model_parallel_size
    padded = model.padded_vocab_size
    if padded is None:
        return
    if padded % tp:
        yield f"--padded-vocab-size {padded} is not a multiple of --tensor-model-parallel-size {tp}"
    if model.vocab_size is not None and padded < model.vocab_size:
        yield f"--padded-vocab-size {padded} is less than --vocab-size {model.vocab_size}"


RULES = (
    Rule(_heads, "hidden_size num_attention_heads num_query_groups"),
    Rule(_positions, "seq_length max_position_embeddings"),
    Rule(_rotary, "hidden_size num_attention_heads kv_channels rotary_percent"),
    Rule(_activation, "hidden_size ffn_hidden_size"),
    Rule(_vocabulary, "vocab_size padded_vocab_size tensor_model_parallel_size"),
)
