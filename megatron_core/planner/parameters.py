# SPDX-License-Identifier: Apache-2.0
"""How many parameters each rank holds, from the model's shape alone; vocabulary padding is counted where stored."""

from megatron_core.config.model import ModelConfig
from megatron_core.planner.linears import linears
from megatron_core.planner.workload import Workload


def layer_parameters(model: ModelConfig, tp: int) -> int:
    """Of one layer, on one tp rank."""
    matrices = linears(model, tp)
    count = sum(out * features_in for out, features_in in matrices) + 2 * norm_parameters(model, model.hidden_size)
    if model.add_bias_linear:
        count += sum(out for out, _ in matrices)
    elif model.add_qkv_bias:
        count += matrices.queries[0] + matrices.keys_and_values[0]
    if model.qk_layernorm:
        count += 2 * norm_parameters(model, model.head_dim)
    return count


def norm_parameters(model: ModelConfig, width: int) -> int:
    """Of a norm over so many numbers."""
    return (1 if model.normalization == "RMSNorm" else 2) * width


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
        count += table_parameters(workload) + norm_parameters(model, model.hidden_size)
    return count


def embedding_parameters(workload: Workload) -> int:
    """Of the embedding: table, learned positions, norm."""
    model, count = workload.model, table_parameters(workload)
    if model.position_embedding_type == "learned_absolute":
        count += model.max_position_embeddings * model.hidden_size
    if model.embed_layernorm:
        count += norm_parameters(model, model.hidden_size)
    return count


def table_parameters(workload: Workload) -> int:
    """Of a table over the vocabulary on one tp rank."""
    return workload.vocabulary_rows * workload.model.hidden_size


def _held_twice(workload: Workload) -> int:
    tied = not workload.model.untie_embeddings_and_output_weights
    return table_parameters(workload) if tied and workload.pp == 1 else 0
