# SPDX-License-Identifier: Apache-2.0
"""How many parameters each rank holds, from the model's shape alone; vocabulary padding is counted where stored."""

from megatron_core.config.model import ModelConfig
from megatron_core.planner.workload import Workload


def layer_parameters(model: ModelConfig, tp: int) -> int:
    """Of one layer, on one tp rank."""
    h, f, d = model.hidden_size, model.ffn_size, model.head_dim
    heads, groups = model.num_attention_heads // tp, max(model.query_groups // tp, 1)
    norms = (1 if model.normalization == "RMSNorm" else 2) * h
    up = (2 if model.swiglu else 1) * f // tp
    count = (heads + 2 * groups) * d * h + heads * d * h + up * h + h * f // tp + 2 * norms
    if model.add_bias_linear:
        count += (heads + 2 * groups) * d + h + up + h
    elif model.add_qkv_bias:
        count += (heads + 2 * groups) * d
    if model.qk_layernorm:
        count += 2 * (1 if model.normalization == "RMSNorm" else 2) * d
    return count


def stage_parameters(workload: Workload, stage: int) -> int:
    """Of all that one rank of a stage holds."""
    return sum(chunk_parameters(workload, k) for k in workload.stage_chunks(stage)) - _held_twice(workload)


def chunk_parameters(workload: Workload, k: int) -> int:
    """Of virtual stage k. With a tied table its two ends each count it, a single stage thus twice."""
    model = workload.model
    count = len(workload.layers[k]) * layer_parameters(model, workload.tp)
    if k == 0:
        count += embedding_parameters(workload)
    if k == len(workload.layers) - 1:
        count += table_parameters(workload) + (1 if model.normalization == "RMSNorm" else 2) * model.hidden_size
    return count


def embedding_parameters(workload: Workload) -> int:
    """Of the embedding: table, learned positions, norm."""
    model, count = workload.model, table_parameters(workload)
    if model.position_embedding_type == "learned_absolute":
        count += model.max_position_embeddings * model.hidden_size
    if model.embed_layernorm:
        count += (1 if model.normalization == "RMSNorm" else 2) * model.hidden_size
    return count


def table_parameters(workload: Workload) -> int:
    """Of a table over the vocabulary on one tp rank."""
    return workload.vocabulary_rows * workload.model.hidden_size


def _held_twice(workload: Workload) -> int:
    tied = not workload.model.untie_embeddings_and_output_weights
    return table_parameters(workload) if tied and workload.pp == 1 else 0
